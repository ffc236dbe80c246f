#include "passes/exits/exit_weights.h"

#include <charconv>
#include <set>

#include "ir/error.h"
#include "ir/schema.h"

namespace quern::passes {
namespace {

Value* add_node(Rewriter& rewriter, std::string op, std::string_view domain, std::vector<Value*> inputs,
                const std::string& name) {
  NodeSpec spec{
      .op = std::move(op), .domain = std::string(domain), .name = name, .inputs = std::move(inputs)};
  spec.outputs = {OutputSpec{.name = name}};
  return rewriter.add_node(std::move(spec))->output();
}

class Reader {
 public:
  Reader(const safetensors::File& file, int64_t layer) : file_(file), layer_(layer) {}

  std::optional<Tensor> find(const std::string& part) const {
    const auto found = file_.tensors.find(name(part));
    return found != file_.tensors.end() ? std::optional(found->second) : std::nullopt;
  }
  // Its last (or first) dimension is the model's width.
  std::optional<Tensor> of_width(const char* part, int64_t width, bool last) const {
    std::optional<Tensor> tensor = find(part);
    if (!tensor) return tensor;
    const Shape& shape = tensor->shape();
    if (shape.empty() || (last ? shape.back() : shape.front()) != width) {
      throw_error(ErrorCode::InvalidArgument, "'", name(part), "' has shape ", to_string(shape),
                  "; the model's width is ", width);
    }
    return tensor;
  }

 private:
  std::string name(const std::string& part) const { return concat("exits.", layer_, ".", part); }

  const safetensors::File& file_;
  int64_t layer_;
};

}  // namespace

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

ExitWeights read_exit_weights(const safetensors::File& file, int64_t layer, const std::string& head,
                              int64_t width, size_t linears) {
  const Reader reader(file, layer);
  ExitWeights own;
  if (head != "shared") {
    own.norm = reader.of_width("norm.weight", width, true);
    own.norm_bias = reader.of_width("norm.bias", width, true);
  }
  if (head != "adapter") return own;
  own.down = reader.of_width("adapter.down.weight", width, true);
  own.up = reader.of_width("adapter.up.weight", width, false);
  if (own.down.has_value() != own.up.has_value() ||
      (own.down && own.down->dim(0) != own.up->shape().back())) {
    throw_error(ErrorCode::InvalidArgument, "exits.", layer,
                ".adapter needs down.weight [R, C] and up.weight [C, R] of one R");
  }
  for (size_t i = 0; i < linears; ++i) {
    own.linears.push_back(
        {reader.find(concat("linear.", i, ".weight")), reader.find(concat("linear.", i, ".bias"))});
  }
  return own;
}

Value* add_adapter(Rewriter& rewriter, int64_t layer, const ExitWeights& own, Value* x) {
  const std::string name = concat("exits.", layer, ".adapter");
  Value* down = add_node(rewriter, "Linear", kQuernDomain,
                         {x, rewriter.add_constant(*own.down, name + ".down.weight")}, name + ".down");
  Value* inner = add_node(rewriter, "Swish", "", {down}, name + ".act");
  Value* up = add_node(rewriter, "Linear", kQuernDomain,
                       {inner, rewriter.add_constant(*own.up, name + ".up.weight")}, name + ".up");
  return add_node(rewriter, "Add", "", {x, up}, name + ".add");
}

bool is_norm(const Node& node) {
  return node.op() == "RMSNormalization" || node.op() == "LayerNormalization" ||
         node.op() == "SimplifiedLayerNormalization" || node.op() == "SkipSimplifiedLayerNormalization" ||
         node.op() == "SkipLayerNormalization";
}

Node* norm_between(const Value* end, const Value* begin) {
  for (const Value* value = end; value != nullptr && value != begin;) {
    Node* node = value->producer();
    if (node == nullptr) return nullptr;
    if (is_norm(*node)) return node;
    value = node->input(0);
  }
  return nullptr;
}

void give_own_norm(Rewriter& rewriter, int64_t layer, const ExitWeights& own, Node* norm) {
  for (const auto& [input, given, part] :
       {std::tuple{size_t{1}, own.norm, "norm.weight"}, std::tuple{size_t{2}, own.norm_bias, "norm.bias"}}) {
    const Value* shared = norm->input(input);
    if (shared == nullptr || shared->tensor() == nullptr) continue;
    const Tensor& tensor = given ? *given : *shared->tensor();
    rewriter.set_input(norm, input, rewriter.add_constant(tensor, concat("exits.", layer, ".", part)));
  }
}

}  // namespace quern::passes
