#include "passes/cleanup/shape_arithmetic.h"

#include <map>
#include <optional>

#include "ir/rewriter.h"

namespace quern::passes {
namespace {

// False where it is certain that `target` has not as many elements as `from`.
bool may_hold_as_many(const SymShape& from, const std::vector<int64_t>& target, bool zero_copies) {
  const auto is_copied = [&](size_t i) { return zero_copies && i < target.size() && target[i] == 0; };
  Dim whole(1);
  Dim taken(1);
  bool inferred = false;
  for (size_t i = 0; i < from.size(); ++i) {
    if (!is_copied(i)) whole = whole * from[i];
  }
  for (size_t i = 0; i < target.size(); ++i) {
    if (target[i] == -1)
      inferred = true;
    else if (!is_copied(i))
      taken = taken * Dim(target[i]);
  }
  if (!whole.is_constant() || !taken.is_constant()) return true;
  if (!inferred) return whole == taken;
  return taken.constant() == 0 || whole.divided_by(taken).has_value();
}

// Reshape's constant shape argument, or nothing with a reason.
std::optional<std::vector<int64_t>> constant_target(const Node& node, std::string& reason) {
  if (!node.input(0)->has_shape() || !node.output()->has_shape()) {
    reason = "a shape is not known";
    return std::nullopt;
  }
  const SymShape& from = node.input(0)->shape();
  const SymShape& to = node.output()->shape();
  const bool zero_copies = node.int_attribute("allowzero", 0) == 0;
  std::vector<int64_t> target;
  bool inferred = false;
  for (size_t i = 0; i < to.size(); ++i) {
    const std::optional<int64_t> constant = to[i].as_constant();
    // Without allowzero a literal 0 would mean "copy".
    if (constant && (*constant != 0 || !zero_copies)) {
      target.push_back(*constant);
    } else if (zero_copies && i < from.size() && to[i] == from[i]) {
      target.push_back(0);
    } else if (!inferred) {
      target.push_back(-1);
      inferred = true;
    } else {
      reason = "more than one dimension of " + to_string(to) + " has to be computed";
      return std::nullopt;
    }
  }
  if (!may_hold_as_many(from, target, zero_copies)) {
    // The model contradicts itself, which is to be said of it when it runs.
    reason = concat("what has the shape ", to_string(from), " cannot take the shape ", to_string(to));
    return std::nullopt;
  }
  return target;
}

void simplify_reshapes(Graph& graph, PassContext& context, PassReport& report) {
  Rewriter rewriter(graph);
  std::map<std::vector<int64_t>, Value*> targets;
  for (Node* node : graph.nodes()) {
    if (!node->is("Reshape") || node->input(1) == nullptr || node->input(1)->is_constant()) continue;
    std::string reason;
    const auto target = constant_target(*node, reason);
    if (!target) {
      context.explain_failure(report, *node, reason);
      continue;
    }
    Value*& constant = targets[*target];
    if (constant == nullptr) {
      const Shape shape = {static_cast<int64_t>(target->size())};
      constant = rewriter.add_constant(Tensor::from<int64_t>(shape, *target), "shape");
    }
    rewriter.set_input(node, 1, constant);
    ++report.changes;
  }
  rewriter.commit();
}

// Equal for values that hold the same integers in the same type.
std::optional<std::string> elements_key(const Value& value) {
  if (!value.elements() || value.is_constant() || !value.has_shape()) return std::nullopt;
  std::string key = concat(to_string(value.type()), ":");
  for (const Dim& dim : *value.elements()) key += dim.to_string() + ",";
  return key;
}

// Shape arithmetic that Shape itself gives, or constants, need no further node; anything else counts as
// computed.
void merge_equal_elements(Graph& graph, PassReport& report) {
  Rewriter rewriter(graph);
  std::map<std::string, Value*> first;
  for (Node* node : graph.nodes()) {
    for (Value* output : node->outputs()) {
      const auto key = output ? elements_key(*output) : std::nullopt;
      if (!key) continue;
      const auto [found, fresh] = first.emplace(*key, output);
      // A value that nobody uses is left to dead-code: replacing it would never end.
      if (fresh || (output->uses().empty() && !graph.is_output(output))) continue;
      rewriter.replace(output, found->second);
      ++report.changes;
    }
  }
  rewriter.commit();
}

}  // namespace

ShapeArithmetic::ShapeArithmetic()
    : Pass("shape-arithmetic", "evaluate the arithmetic of shapes symbolically") {}

PassReport ShapeArithmetic::run(Graph& graph, PassContext& context) {
  PassReport report;
  for (Graph* each : all_graphs(graph)) {
    simplify_reshapes(*each, context, report);
    merge_equal_elements(*each, report);
  }
  return report;
}

}  // namespace quern::passes
