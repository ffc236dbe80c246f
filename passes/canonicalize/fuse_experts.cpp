#include "passes/canonicalize/fuse_experts.h"

#include "ir/schema.h"
#include "ir/shape_inference.h"
#include "passes/canonicalize/experts_match.h"

namespace quern::passes {

Value* expert_slice(BatchRewriter& batch, Value* constant, int64_t e) {
  const std::string name = concat(constant->name(), ".", e);
  const SymShape& dims = constant->shape();
  Shape shape;
  for (size_t i = 1; i < dims.size(); ++i) shape.push_back(dims[i].constant());
  if (const Tensor* tensor = constant->tensor(); tensor && bit_width(tensor->dtype()) >= 8) {
    const auto owner = std::make_shared<const Tensor>(*tensor);
    const int64_t bytes = tensor->byte_size() / std::max<int64_t>(1, tensor->dim(0));
    return batch.add_constant(Tensor::view(tensor->dtype(), shape, owner, owner->bytes() + e * bytes, bytes),
                              name);
  }
  const auto ints = [&](std::vector<int64_t> values) {
    return batch.add_constant(Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, values));
  };
  Value* part = batch.add("Slice", {constant, ints({e}), ints({e + 1}), ints({0})});
  return batch.add("Reshape", {part, ints(shape)});
}

namespace {

// The layers of one expert on its rows, node by node.
class LayerCopy {
 public:
  // `expert`: which of the batched ones; else -1.
  LayerCopy(BatchRewriter& batch, const ExpertLayers& layers, int64_t expert)
      : batch_(batch), layers_(layers), expert_(expert) {}

  Value* apply(Value* rows) {
    copies_[layers_.input] = expert_ < 0 ? rows : batch_.add("Unsqueeze", {rows, axis_zero()});
    for (const Node* node : layers_.nodes) copy(*node);
    Value* result = copies_.at(layers_.output);
    return expert_ < 0 ? result : batch_.add("Squeeze", {result, axis_zero()});
  }

 private:
  Value* axis_zero() { return batch_.add_constant(Tensor::from<int64_t>({1}, {0})); }

  Value* operand(Value* old) {
    if (old == nullptr) return nullptr;
    const auto copied = copies_.find(old);
    if (copied != copies_.end()) return copied->second;
    // Constants with a part for each expert.
    const bool parted =
        expert_ >= 0 && old->has_shape() && old->shape().size() == 3 && !(old->shape()[0] == Dim(1));
    if (!parted) return batch_.resolve(old);
    return batch_.add("Unsqueeze", {expert_slice(batch_, skip_casts(old), expert_), axis_zero()});
  }

  void copy(const Node& node) {
    if (node.is("MatMul")) {
      Value* weight = expert_slice(batch_, skip_casts(node.input(1)), expert_);
      weight = batch_.add("Transpose", {weight}, {{"perm", std::vector<int64_t>{1, 0}}});
      copies_[node.output()] = batch_.add("Linear", {operand(node.input(0)), weight}, {},
                                          std::string(kQuernDomain), name_of(node));
      return;
    }
    NodeSpec spec{.op = node.op(),
                  .domain = node.domain(),
                  .opset = node.opset(),
                  .name = name_of(node),
                  .attributes = node.attributes()};
    for (Value* input : node.inputs()) spec.inputs.push_back(operand(input));
    spec.outputs.clear();
    for (const Value* output : node.outputs())
      spec.outputs.push_back(output ? OutputSpec{} : OutputSpec::omitted());
    const Node* made = batch_.add_node(std::move(spec));
    for (size_t i = 0; i < node.outputs().size(); ++i) {
      if (node.output(i)) copies_[node.output(i)] = made->output(i);
    }
  }

  std::string name_of(const Node& node) const {
    return node.name().empty() || expert_ < 0 ? node.name() : concat(node.name(), ".", expert_);
  }

  BatchRewriter& batch_;
  const ExpertLayers& layers_;
  int64_t expert_;
  std::unordered_map<const Value*, Value*> copies_;
};

void rewrite(BatchRewriter& batch, const ExpertsMatch& match) {
  const std::string domain(kQuernDomain);
  const RoutingKind& kind = match.routing;
  Attributes attributes = {{"experts_per_token", kind.per_token}};
  if (kind.score != "softmax") attributes["score"] = kind.score;
  if (kind.normalize) attributes["normalize"] = int64_t{1};
  if (kind.scale != 1) attributes["scale"] = static_cast<float>(kind.scale);
  std::vector<Value*> inputs = {batch.resolve(match.logits)};
  if (kind.bias) {
    const Value* value = kind.bias;
    Tensor bias = runtime::evaluate(std::span(&value, 1)).front().dense().cast(DType::F32);
    inputs.push_back(batch.add_constant(bias.reshaped({kind.experts}), kind.bias->name()));
  }
  Value* routing = batch.add("RouteExperts", inputs, attributes, domain);
  std::vector<Value*> results = {routing};
  for (int64_t e = 0; e < kind.experts; ++e) {
    Value* rows = batch.add("ExpertRows", {batch.resolve(match.x), routing}, {{"expert", e}}, domain);
    const ExpertLayers& layers = match.layers[match.batched ? 0 : static_cast<size_t>(e)];
    if (match.x->dtype() != layers.input->dtype())
      rows = batch.add("Cast", {rows}, {{"to", onnx_code(layers.input->dtype())}});
    results.push_back(LayerCopy(batch, layers, match.batched ? e : -1).apply(rows));
  }
  Value* sum = batch.add("CombineExperts", results, {}, domain);
  const DType dtype = match.output->dtype();
  if (match.layers.front().output->dtype() != dtype)
    sum = batch.add("Cast", {sum}, {{"to", onnx_code(dtype)}});
  if (match.output_like != match.x) {
    Value* shape = batch.add("Shape", {batch.resolve(match.output_like)});
    sum = batch.add("Reshape", {sum, shape});
  }
  batch.replace(match.output, sum);
}

}  // namespace

FuseExperts::FuseExperts()
    : Pass("fuse-experts", "mixtures of experts become operators that compute the routed experts alone") {}

PassReport FuseExperts::run(Graph& graph, PassContext& context) {
  PassReport report;
  const auto inputs = transformer_inputs(graph);
  BatchRewriter batch(graph);
  std::optional<ExpertsMatcher> matcher;
  const std::vector<Node*> nodes = graph.nodes();
  for (const Node* node : nodes) {
    std::string reason;
    if (node->is("TopK") && inputs) {
      if (!matcher) matcher.emplace(graph, *inputs);
      const auto match = matcher->match(*node, reason);
      if (match) rewrite(batch, *match);
    } else if (node->is("MoE", kMicrosoftDomain) || node->is("QMoE", kMicrosoftDomain)) {
      try {
        reason = expand_moe(batch, *node);
      } catch (const Error& error) {
        reason = error.message();
      }
    } else {
      continue;
    }
    if (reason.empty()) {
      ++report.changes;
    } else {
      context.explain_failure(report, *node, reason);
    }
  }
  batch.commit();
  if (report.changes > 0) infer_shapes(graph);
  return report;
}

}  // namespace quern::passes
