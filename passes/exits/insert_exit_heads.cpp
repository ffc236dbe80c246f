#include "passes/exits/insert_exit_heads.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "formats/safetensors/safetensors.h"
#include "ir/rewriter.h"
#include "ir/schema.h"
#include "passes/exits/encoder_head.h"
#include "passes/exits/exit_weights.h"
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

bool has_cache(const Graph& graph) {
  const std::vector<Node*>& nodes = graph.nodes();
  return std::any_of(nodes.begin(), nodes.end(),
                     [](const Node* node) { return node->is("CachedAttention", kQuernDomain); });
}

class Inserter {
 public:
  Inserter(Graph& graph, const safetensors::File* file, const std::string& head)
      : builder_(graph), file_(file), head_(head), width_(width_of(*builder_.stream(0))) {}

  int64_t layers() const { return builder_.layers(); }

  void add(int64_t layer) {
    ExitWeights own;
    if (file_ != nullptr) own = read_exit_weights(*file_, layer, head_, width_);
    Value* x = builder_.at_head(builder_.stream(layer));
    const std::string name = runtime::exit_output(layer);
    if (own.down) x = adapter(layer, own, x);
    Value* logits = builder_.logits(x);
    if (own.norm || head_ != "shared") give_own_norm(builder_.rewriter(), layer, own, norm_of(logits, x));
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

  Value* adapter(int64_t layer, const ExitWeights& own, Value* x) {
    return builder_.same_rows(add_adapter(builder_.rewriter(), layer, own, x), x);
  }

  // The norm through which the logits are made of x.
  static Node* norm_of(const Value* logits, const Value* x) {
    Node* norm = norm_between(logits, x);
    if (norm == nullptr) {
      throw_error(ErrorCode::Unsupported,
                  "insert-exit-heads: the head reads no norm of the stream; only head=shared is possible");
    }
    return norm;
  }

  runtime::LayerBuilder builder_;
  const safetensors::File* file_;
  const std::string& head_;
  int64_t width_;
};

}  // namespace

InsertExitHeads::InsertExitHeads()
    : Pass("insert-exit-heads", "add heads that give a model's logits after some of its layers") {
  option("layers", &layers_,
         "After how many layers: numbers such as 2,4,6. Empty: those that the weights have.");
  option("head", &head_,
         "What a head consists of: the final norm and head, its own norm before the final head, or also "
         "whatever else the weights have: an adapter before that norm, and of encoders a pooler and a "
         "classifier "
         "of its own.",
         {"shared", "norm", "adapter"});
  option("weights", &weights_,
         "A safetensors file with trained norms and adapters (of encoders: poolers and classifiers). Empty: "
         "norms begin as the final one, and there are no adapters.");
}

bool InsertExitHeads::add_to_decoder(Graph& graph, const std::vector<int64_t>& layers,
                                     const safetensors::File* file, PassContext& context,
                                     PassReport& report) const {
  try {
    runtime::find_layers(graph);
  } catch (const Error& error) {
    if (context.explain) report.failures.push_back({"the graph", error.message()});
    return false;
  }
  Inserter inserter(graph, file, head_);
  for (const int64_t layer : layers) {
    if (layer >= inserter.layers()) {
      throw_error(ErrorCode::InvalidArgument, "insert-exit-heads: an exit behind layer ", layer,
                  " of a model of ", inserter.layers(), " layers");
    }
    inserter.add(layer);
  }
  inserter.commit();
  return true;
}

bool InsertExitHeads::add_to_encoder(Graph& graph, const std::vector<int64_t>& layers,
                                     const safetensors::File* file, PassContext& context,
                                     PassReport& report) const {
  try {
    find_encoder_head(runtime::find_encoder_layers(graph));
  } catch (const Error& error) {
    if (context.explain) report.failures.push_back({"the graph", error.message()});
    return false;
  }
  add_encoder_exits(graph, layers, head_, file);
  return true;
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
  const bool added = has_cache(graph)
                         ? add_to_decoder(graph, layers, file ? &*file : nullptr, context, report)
                         : add_to_encoder(graph, layers, file ? &*file : nullptr, context, report);
  if (!added) return report;
  report.changes = static_cast<int64_t>(layers.size());
  report.notes.push_back(concat("added ", layers.size(), " exit heads"));
  return report;
}

}  // namespace quern::passes
