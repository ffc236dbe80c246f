#include "passes/canonicalize/fuse_linear.h"

#include "ir/schema.h"
#include "passes/canonicalize/control.h"
#include "passes/canonicalize/match.h"
#include "passes/canonicalize/quantized_layout.h"

namespace quern::passes {
namespace {

struct LinearMatch {
  Value* x = nullptr;
  Value* weight = nullptr;
  bool weight_is_nk = false;  // else [K, N]
  Value* bias = nullptr;
  Value* output = nullptr;
  std::string reason = {};  // why not, where output is null
};

bool is_matrix_constant(const Value* value) {
  return value && value->has_shape() && value->shape().size() == 2 && is_floating(value->dtype()) &&
         is_constant_expression(value);
}

LinearMatch match_product(const Node& node) {
  LinearMatch match{.x = node.input(0), .weight = node.input(1)};
  const bool gemm = node.is("Gemm");
  const bool fused = node.is("FusedMatMul", kMicrosoftDomain);
  if (!gemm && !fused && !node.is("MatMul")) return match;
  if (!is_matrix_constant(match.weight)) return match;
  if (gemm || fused) {
    const bool unit = node.float_attribute("alpha", 1.0F) == 1.0F &&
                      (!gemm || node.input(2) == nullptr || node.float_attribute("beta", 1.0F) == 1.0F);
    if (!unit || node.int_attribute("transA", 0) != 0 || node.int_attribute("transBatchA", 0) != 0) {
      match.reason = "it scales its operands or transposes its input";
      return match;
    }
    match.weight_is_nk = node.int_attribute("transB", 0) != 0;
  }
  if (gemm) match.bias = node.input(2);
  match.output = node.output();
  return match;
}

// A constant vector of n elements that Linear takes as its bias.
bool is_bias(const Value* value, int64_t n) {
  return value && is_constant_expression(value) && value->has_shape() && value->shape().size() == 1 &&
         value->shape()[0] == Dim(n);
}

// W as [N, K]: W itself, what it is the transpose of, or its transpose. What a constant was cast to does not
// matter: Linear takes weights of any float type.
Value* as_nk(BatchRewriter& batch, const LinearMatch& match) {
  Value* weight = skip_casts(match.weight);
  if (match.weight_is_nk) return weight;
  const Node* transpose = produced_by(weight, "Transpose");
  if (transpose && transpose->ints_attribute("perm", {1, 0}) == std::vector<int64_t>{1, 0}) {
    return skip_casts(transpose->input(0));
  }
  if (const QuantizedTensor* quantized = weight->quantized()) {
    return batch.add_constant(transposed(*quantized), weight->name());
  }
  return batch.add("Transpose", {weight}, {{"perm", std::vector<int64_t>{1, 0}}});
}

bool fuse_product(BatchRewriter& batch, const Node& node, const ControlValues& control, PassContext& context,
                  PassReport& report) {
  LinearMatch match = match_product(node);
  if (match.output == nullptr) {
    if (!match.reason.empty()) context.explain_failure(report, node, match.reason);
    return false;
  }
  if (control.is_control(match.x)) {
    context.explain_failure(report, node, "its input depends on positions or masks alone");
    return false;
  }
  const int64_t n = match.weight->shape()[match.weight_is_nk ? 0 : 1].constant();
  if (match.bias && !is_bias(match.bias, n)) {
    context.explain_failure(report, node, "its addend is no constant vector of ", n, " elements");
    return false;
  }
  if (match.bias == nullptr) {
    const Node* add = sole_user(match.output);
    Value* bias = add && add->is("Add") ? other_input(*add, match.output) : nullptr;
    if (is_bias(bias, n)) {
      match.bias = bias;
      match.output = add->output();
    }
  }
  std::vector<Value*> inputs = {match.x, as_nk(batch, match)};
  if (match.bias) inputs.push_back(match.bias);
  batch.substitute(match.output, "Linear", inputs, {}, std::string(kQuernDomain), node.name());
  return true;
}

// Linear(x, w) + b, where the product was a Linear before.
bool fuse_bias(BatchRewriter& batch, const Node& node) {
  if (!node.is("Linear", kQuernDomain) || node.input(2) != nullptr || !node.input(1)->has_shape())
    return false;
  const auto n = node.input(1)->shape()[0].as_constant();
  const Node* add = sole_user(node.output());
  Value* bias = n && add && add->is("Add") ? other_input(*add, node.output()) : nullptr;
  if (!is_bias(bias, n.value_or(0))) return false;
  batch.substitute(add->output(), "Linear", {node.input(0), node.input(1), bias}, {},
                   std::string(kQuernDomain), node.name());
  return true;
}

}  // namespace

FuseLinear::FuseLinear()
    : Pass("fuse-linear", "products with constant matrices, and their biases, become Linear") {}

PassReport FuseLinear::run(Graph& graph, PassContext& context) {
  PassReport report;
  const ControlValues control(graph);
  for (Graph* each : all_graphs(graph)) {
    BatchRewriter batch(*each);
    for (const Node* node : each->nodes()) {
      if (fuse_product(batch, *node, control, context, report) || fuse_bias(batch, *node)) ++report.changes;
    }
    batch.commit();
  }
  return report;
}

FuseEmbedding::FuseEmbedding() : Pass("fuse-embedding", "look-ups in constant tables become Embedding") {}

PassReport FuseEmbedding::run(Graph& graph, PassContext&) {
  PassReport report;
  for (Graph* each : all_graphs(graph)) {
    BatchRewriter batch(*each);
    for (const Node* node : each->nodes()) {
      if (!node->is("Gather") || !is_matrix_constant(node->input(0)) || node->int_attribute("axis", 0) != 0)
        continue;
      // A constant index is data movement that constant folding or a view takes care of.
      if (is_constant_expression(node->input(1))) continue;
      // Embedding gives f32, whatever the table is stored as.
      Value* rows = batch.add("Embedding", {node->input(0), node->input(1)}, {}, std::string(kQuernDomain),
                              node->name());
      const DType dtype = node->output()->dtype();
      if (dtype != DType::F32) rows = batch.add("Cast", {rows}, {{"to", onnx_code(dtype)}});
      batch.replace(node->output(), rows);
      ++report.changes;
    }
    batch.commit();
  }
  return report;
}

}  // namespace quern::passes
