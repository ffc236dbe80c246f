#include "passes/cleanup/no_ops.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <unordered_map>

#include "ir/rewriter.h"
#include "passes/cleanup/node_facts.h"

namespace quern::passes {
namespace {

// What output 0 of the node is equal to, or null with the reason.
struct Finding {
  Value* value = nullptr;
  std::string reason = {};
};
using Finder = std::function<Finding(const Node&)>;

Finding always(const Node& node) {
  return {node.input(0)};
}

Finding if_inference(const Node& node) {
  if (!is_pure(node)) return {nullptr, "it drops elements at random"};
  if (node.output(1) != nullptr) return {nullptr, "its mask is used"};
  return {node.input(0)};
}

Finding if_same_type(const Node& node) {
  if (node.input(0)->dtype() != DType::Undefined && node.input(0)->dtype() == node.output()->dtype()) {
    return {node.input(0)};
  }
  return {nullptr, "the element type changes"};
}

Finding if_same_shape(const Node& node) {
  if (same_type(node.input(0), node.output())) return {node.input(0)};
  return {nullptr, "the shape changes, or is not known not to"};
}

Finding if_identity_permutation(const Node& node) {
  const std::vector<int64_t> perm = node.ints_attribute("perm", {});
  if (perm.empty()) {
    const Value* x = node.input(0);
    if (x->has_shape() && x->shape().size() <= 1) return {node.input(0)};
    return {nullptr, "it reverses the axes"};
  }
  for (size_t i = 0; i < perm.size(); ++i) {
    if (perm[i] != static_cast<int64_t>(i)) return {nullptr, "it moves axes"};
  }
  return {node.input(0)};
}

Finding if_takes_all(const Node& node) {
  const IntsParameter steps = ints_parameter(node, 4, "steps");
  if (steps.present) {
    if (!steps.values) return {nullptr, "its steps are not constant"};
    if (std::any_of(steps.values->begin(), steps.values->end(), [](int64_t step) { return step != 1; })) {
      return {nullptr, "it steps otherwise than by 1"};
    }
  }
  return if_same_shape(node);
}

Finding if_no_padding(const Node& node) {
  const IntsParameter pads = ints_parameter(node, 1, "pads");
  if (!pads.present || !pads.values) return {nullptr, "its pads are not constant"};
  if (std::any_of(pads.values->begin(), pads.values->end(), [](int64_t pad) { return pad != 0; })) {
    return {nullptr, "it pads"};
  }
  return {node.input(0)};
}

Finding if_only_output(const Node& node) {
  if (node.outputs().size() != 1) return {nullptr, "it has several outputs"};
  return if_same_shape(node);
}

Finding if_only_input(const Node& node) {
  if (node.inputs().size() != 1) return {nullptr, "it has several inputs"};
  return {node.input(0)};
}

// The operand beside a neutral one.
Finding beside(const Node& node, double neutral, bool either_side) {
  for (size_t side = either_side ? 0 : 1; side < 2; ++side) {
    if (!is_filled_with(node.input(side), neutral)) continue;
    Value* other = node.input(1 - side);
    if (same_type(other, node.output())) return {other};
    return {nullptr, "the neutral constant widens the shape"};
  }
  return {nullptr, "no operand is neutral"};
}

Finding chosen_branch(const Node& node) {
  for (const double truth : {1.0, 0.0}) {
    if (!is_filled_with(node.input(0), truth)) continue;
    Value* chosen = node.input(truth == 1.0 ? 1 : 2);
    if (same_type(chosen, node.output())) return {chosen};
    return {nullptr, "the chosen input is broadcast"};
  }
  return {nullptr, "the condition is not constant"};
}

const std::map<std::string, Finder, std::less<>>& finders() {
  const auto neutral = [](double number, bool either_side) {
    return [=](const Node& node) { return beside(node, number, either_side); };
  };
  static const std::map<std::string, Finder, std::less<>> table = {
      {"Identity", always},
      {"Dropout", if_inference},
      {"Cast", if_same_type},
      {"CastLike", if_same_type},
      {"Reshape", if_same_shape},
      {"Flatten", if_same_shape},
      {"Squeeze", if_same_shape},
      {"Unsqueeze", if_same_shape},
      {"Expand", if_same_shape},
      {"Tile", if_same_shape},
      {"Transpose", if_identity_permutation},
      {"Slice", if_takes_all},
      {"Pad", if_no_padding},
      {"Split", if_only_output},
      {"Concat", if_only_input},
      {"Sum", if_only_input},
      {"Mean", if_only_input},
      {"Max", if_only_input},
      {"Min", if_only_input},
      {"Add", neutral(0, true)},
      {"Sub", neutral(0, false)},
      {"Mul", neutral(1, true)},
      {"Div", neutral(1, false)},
      {"Pow", neutral(1, false)},
      {"And", neutral(1, true)},
      {"Or", neutral(0, true)},
      {"Where", chosen_branch},
  };
  return table;
}

bool is_empty_along(const Value* value, int64_t axis) {
  if (value == nullptr || !value->has_shape()) return false;
  const auto rank = static_cast<int64_t>(value->shape().size());
  const int64_t at = axis < 0 ? axis + rank : axis;
  return at >= 0 && at < rank && value->shape()[static_cast<size_t>(at)] == Dim(0);
}

using Replaced = std::unordered_map<Value*, Value*>;

// Chains collapse in one commit: what a node that goes itself hands on.
Value* resolve(const Replaced& replaced, Value* value) {
  const auto earlier = replaced.find(value);
  return earlier != replaced.end() ? earlier->second : value;
}

// Concat without the inputs that add nothing; keeps at least one.
bool drop_empty_inputs(Node& node, const Replaced& replaced, Rewriter& rewriter) {
  if (!node.is("Concat") || node.inputs().size() < 2) return false;
  const int64_t axis = node.int_attribute("axis", 0);
  std::vector<Value*> kept;
  for (Value* input : node.inputs()) {
    if (!is_empty_along(input, axis)) kept.push_back(resolve(replaced, input));
  }
  if (kept.empty()) kept.push_back(resolve(replaced, node.input(0)));
  if (kept.size() == node.inputs().size()) return false;
  const Node* smaller = rewriter.add_node({.op = "Concat",
                                           .opset = node.opset(),
                                           .name = node.name(),
                                           .inputs = kept,
                                           .attributes = node.attributes(),
                                           .outputs = {{{}, node.output()->type()}}});
  rewriter.replace(node.output(), smaller->output());
  return true;
}

void run_on(Graph& graph, PassContext& context, PassReport& report) {
  Rewriter rewriter(graph);
  Replaced replaced;
  for (Node* node : graph.nodes()) {
    if (!node->domain().empty() || node->output() == nullptr) continue;
    if (drop_empty_inputs(*node, replaced, rewriter)) {
      ++report.changes;
      continue;
    }
    const auto finder = finders().find(node->op());
    if (finder == finders().end()) continue;
    Finding finding = finder->second(*node);
    if (finding.value == nullptr) {
      context.explain_failure(report, *node, finding.reason);
      continue;
    }
    finding.value = resolve(replaced, finding.value);
    replaced.emplace(node->output(), finding.value);
    rewriter.replace(node->output(), finding.value);
    ++report.changes;
  }
  rewriter.commit();
}

}  // namespace

NoOps::NoOps() : Pass("no-ops", "remove nodes that hand on what they get") {}

PassReport NoOps::run(Graph& graph, PassContext& context) {
  PassReport report;
  for (Graph* each : all_graphs(graph)) run_on(*each, context, report);
  return report;
}

}  // namespace quern::passes
