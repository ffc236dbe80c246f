#include "passes/canonicalize/fuse_skip_norm.h"

#include <set>
#include <unordered_map>

#include "ir/schema.h"
#include "passes/canonicalize/match.h"

namespace quern::passes {
namespace {

// Empty, or why sum and norm stay apart.
std::string obstacle(const Node& norm, const Node& add) {
  const Value* x = add.input(0);
  const Value* y = add.input(1);
  if (!x->has_shape() || !y->has_shape() || x->shape() != y->shape()) return "the sum broadcasts";
  if (x->shape().size() < 2 || x->shape().size() > 3) return "the sum has neither rank 2 nor 3";
  if (is_constant_expression(x) || is_constant_expression(y)) return "a constant is added";
  if (norm.int_attribute("axis", -1) != -1) return "the norm is not over the last axis";
  for (size_t i = 1; i < norm.inputs().size(); ++i) {
    const Value* parameter = norm.input(i);
    if (parameter && (!parameter->has_shape() || parameter->shape().size() != 1))
      return "weight or bias is no vector";
  }
  for (size_t i = 1; i < norm.outputs().size(); ++i) {
    if (norm.output(i) && !norm.output(i)->uses().empty()) return "the norm's statistics are used";
  }
  return {};
}

}  // namespace

FuseSkipNorm::FuseSkipNorm()
    : Pass("fuse-skip-norm", "a residual sum and the norm behind it become one operator") {}

PassReport FuseSkipNorm::run(Graph& graph, PassContext& context) {
  PassReport report;
  for (Graph* each : all_graphs(graph)) {
    BatchRewriter batch(*each);
    std::unordered_map<const Node*, size_t> order;
    std::set<const Value*> taken;
    for (const Node* node : each->nodes()) {
      order.emplace(node, order.size() + 1);
      const bool simple = node->is("RMSNormalization");
      if (!simple && !node->is("LayerNormalization")) continue;
      Node* add = produced_by(node->input(0), "Add");
      if (add == nullptr) continue;
      const std::string why = obstacle(*node, *add);
      if (!why.empty() || !taken.insert(add->output()).second) {
        context.explain_failure(report, *node, why.empty() ? "another norm has taken the sum" : why);
        continue;
      }
      const auto when = [&](const Value* value) {
        const Node* selection = produced_by(value, "SelectRows", kQuernDomain);
        const Node* producer = selection ? selection->input(0)->producer() : value->producer();
        return producer ? order.at(producer) : 0;
      };
      std::vector<Value*> inputs = {add->input(0), add->input(1), node->input(1)};
      if (when(inputs[1]) < when(inputs[0])) std::swap(inputs[0], inputs[1]);
      if (node->input(2)) inputs.push_back(node->input(2));
      NodeSpec spec{.op = simple ? "SkipSimplifiedLayerNormalization" : "SkipLayerNormalization",
                    .domain = std::string(kMicrosoftDomain),
                    .name = node->name(),
                    .inputs = inputs,
                    .attributes = {{"epsilon", node->float_attribute("epsilon", 1e-5F)}}};
      const bool sum_used = sole_user(add->output()) != node;
      spec.outputs = {OutputSpec{.type = node->output()->type()}};
      if (sum_used) {
        spec.outputs.insert(spec.outputs.end(), {OutputSpec::omitted(), OutputSpec::omitted()});
        spec.outputs.push_back({.type = add->output()->type()});
      }
      const Node* fused = batch.add_node(std::move(spec));
      batch.replace(node->output(), fused->output());
      if (sum_used) batch.replace(add->output(), fused->output(3));
      ++report.changes;
    }
    batch.commit();
  }
  return report;
}

}  // namespace quern::passes
