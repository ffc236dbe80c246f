#include "passes/exits/insert_exit_heads.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "formats/safetensors/safetensors.h"
#include "ir/rewriter.h"
#include "ir/schema.h"
#include "runtime/layers/blocks.h"

namespace quern::passes {
namespace {

std::vector<int64_t> parse_layers(const std::string& text) {
  std::set<int64_t> layers;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    int64_t layer = 0;
    const auto [at, error] = std::from_chars(text.data() + begin, text.data() + end, layer);
    if (error != std::errc() || at != text.data() + end || layer < 1) {
      throw_error(ErrorCode::InvalidArgument, "insert-exit-heads: layers is '", text,
                  "'; numbers of layers that have run, such as 2,4,6, were expected");
    }
    layers.insert(layer);
    begin = end + 1;
  }
  return {layers.begin(), layers.end()};
}

// The layers that a file has tensors of.
std::vector<int64_t> layers_of(const safetensors::File& file) {
  std::set<int64_t> layers;
  for (const auto& [name, tensor] : file.tensors) {
    constexpr std::string_view kPrefix = "exits.";
    int64_t layer = 0;
    if (!name.starts_with(kPrefix)) continue;
    const char* begin = name.data() + kPrefix.size();
    const auto [at, error] = std::from_chars(begin, name.data() + name.size(), layer);
    if (error == std::errc() && *at == '.' && layer > 0) layers.insert(layer);
  }
  return {layers.begin(), layers.end()};
}

bool is_norm(const Node& node) {
  return node.op() == "RMSNormalization" || node.op() == "LayerNormalization" ||
         node.op() == "SimplifiedLayerNormalization" || node.op() == "SkipSimplifiedLayerNormalization" ||
         node.op() == "SkipLayerNormalization";
}

// One exit's own weights; what is not there is shared with the final norm.
struct ExitWeights {
  std::optional<Tensor> norm, norm_bias, down, up;
};

class Inserter {
 public:
  Inserter(Graph& graph, const safetensors::File* file, const std::string& head)
      : builder_(graph), file_(file), head_(head), width_(width_of(*builder_.stream(0))) {}

  int64_t layers() const { return builder_.layers(); }

  void add(int64_t layer) {
    const ExitWeights own = weights_of(layer);
    Value* x = builder_.at_head(builder_.stream(layer));
    const std::string name = runtime::exit_output(layer);
    if (own.down) x = adapter(layer, own, x);
    Value* logits = builder_.logits(x);
    if (own.norm || head_ != "shared") own_norm(layer, own, norm_of(logits, x));
    builder_.output(logits, name);
  }
  void commit() { builder_.commit(); }

 private:
  static int64_t width_of(const Value& stream) {
    const auto width =
        stream.has_shape() && stream.shape().size() == 2 ? stream.shape()[1].as_constant() : std::nullopt;
    if (!width) {
      throw_error(ErrorCode::InvalidArgument, "insert-exit-heads: the width of '", stream.name(),
                  "' is not known");
    }
    return *width;
  }

  ExitWeights weights_of(int64_t layer) const {
    ExitWeights own;
    if (file_ == nullptr) return own;
    const auto find = [&](const char* part, int64_t last) {
      const std::string name = concat("exits.", layer, ".", part);
      const auto found = file_->tensors.find(name);
      if (found == file_->tensors.end()) return std::optional<Tensor>();
      const Shape& shape = found->second.shape();
      if (shape.empty() || (last > 0 ? shape.back() : shape.front()) != width_) {
        throw_error(ErrorCode::InvalidArgument, "'", name, "' has shape ", to_string(shape),
                    "; the model's width is ", width_);
      }
      return std::optional<Tensor>(found->second);
    };
    if (head_ != "shared") {
      own.norm = find("norm.weight", 1);
      own.norm_bias = find("norm.bias", 1);
    }
    if (head_ != "adapter") return own;
    own.down = find("adapter.down.weight", 1);
    own.up = find("adapter.up.weight", 0);
    if (own.down.has_value() != own.up.has_value() ||
        (own.down && own.down->dim(0) != own.up->shape().back())) {
      throw_error(ErrorCode::InvalidArgument, "exits.", layer,
                  ".adapter needs down.weight [R, C] and up.weight [C, R] of one R");
    }
    return own;
  }

  Value* node(std::string op, std::string domain, std::vector<Value*> inputs, const std::string& name) {
    NodeSpec spec{
        .op = std::move(op), .domain = std::move(domain), .name = name, .inputs = std::move(inputs)};
    spec.outputs = {OutputSpec{.name = name}};
    return builder_.rewriter().add_node(std::move(spec))->output();
  }

  Value* adapter(int64_t layer, const ExitWeights& own, Value* x) {
    const std::string name = concat("exits.", layer, ".adapter");
    const std::string domain(kQuernDomain);
    Rewriter& rewriter = builder_.rewriter();
    Value* down =
        node("Linear", domain, {x, rewriter.add_constant(*own.down, name + ".down.weight")}, name + ".down");
    Value* inner = node("Swish", "", {down}, name + ".act");
    Value* up =
        node("Linear", domain, {inner, rewriter.add_constant(*own.up, name + ".up.weight")}, name + ".up");
    return builder_.same_rows(node("Add", "", {x, up}, name + ".add"), x);
  }

  // The norm through which the logits are made of x.
  static Node* norm_of(const Value* logits, const Value* x) {
    for (const Value* value = logits; value != nullptr && value != x;) {
      Node* node = value->producer();
      if (node == nullptr) break;
      if (is_norm(*node)) return node;
      value = node->input(0);
    }
    throw_error(ErrorCode::Unsupported,
                "insert-exit-heads: the head reads no norm of the stream; only head=shared is possible");
  }

  void own_norm(int64_t layer, const ExitWeights& own, Node* norm) {
    Rewriter& rewriter = builder_.rewriter();
    for (const auto& [input, given, part] : {std::tuple{size_t{1}, own.norm, "norm.weight"},
                                             std::tuple{size_t{2}, own.norm_bias, "norm.bias"}}) {
      const Value* shared = norm->input(input);
      if (shared == nullptr || shared->tensor() == nullptr) continue;
      const Tensor& tensor = given ? *given : *shared->tensor();
      rewriter.set_input(norm, input, rewriter.add_constant(tensor, concat("exits.", layer, ".", part)));
    }
  }

  runtime::LayerBuilder builder_;
  const safetensors::File* file_;
  const std::string& head_;
  int64_t width_;
};

}  // namespace

InsertExitHeads::InsertExitHeads()
    : Pass("insert-exit-heads", "add heads that give a decoder's logits after some of its layers") {
  option("layers", &layers_,
         "After how many layers: numbers such as 2,4,6. Empty: those that the weights have.");
  option("head", &head_,
         "What a head consists of: the final norm and head, its own norm before the final head, or also an "
         "adapter before that norm.",
         {"shared", "norm", "adapter"});
  option("weights", &weights_,
         "A safetensors file with trained norms and adapters. Empty: norms begin as the final one, and there "
         "are no adapters.");
}

PassReport InsertExitHeads::run(Graph& graph, PassContext& context) {
  PassReport report;
  if (layers_.empty() && weights_.empty()) return report;
  std::optional<safetensors::File> file;
  if (!weights_.empty()) file = safetensors::read(weights_);
  std::vector<int64_t> layers = parse_layers(layers_);
  if (layers.empty()) layers = layers_of(*file);
  if (layers.empty()) {
    throw_error(ErrorCode::InvalidArgument, "'", weights_,
                "' holds no exit heads: no tensor is called exits.K.norm.weight or the like");
  }
  const std::vector<int64_t> there = runtime::exits_of(graph);
  std::erase_if(layers,
                [&](int64_t layer) { return std::find(there.begin(), there.end(), layer) != there.end(); });
  if (layers.empty()) return report;
  try {
    runtime::find_layers(graph);
  } catch (const Error& error) {
    if (context.explain) report.failures.push_back({"the graph", error.message()});
    return report;
  }
  Inserter inserter(graph, file ? &*file : nullptr, head_);
  for (const int64_t layer : layers) {
    if (layer >= inserter.layers()) {
      throw_error(ErrorCode::InvalidArgument, "insert-exit-heads: an exit behind layer ", layer,
                  " of a model of ", inserter.layers(), " layers");
    }
    inserter.add(layer);
  }
  inserter.commit();
  report.changes = static_cast<int64_t>(layers.size());
  report.notes.push_back(concat("added ", layers.size(), " exit heads"));
  return report;
}

}  // namespace quern::passes
