#include "passes/canonicalize/inline_branches.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "ir/shape_inference.h"
#include "passes/canonicalize/control.h"
#include "passes/canonicalize/match.h"

namespace quern::passes {
namespace {

// Which branch is known to be taken; nothing where that shows at run time only.
std::optional<bool> condition_of(const Node& node) {
  const Value* condition = node.input(0);
  if (const auto constant = constant_scalar(condition)) return *constant != 0;
  const bool input = condition->producer() == nullptr && condition->graph() == node.graph() &&
                     node.graph()->parent() == nullptr;
  // The branch with a past takes the encoder's keys and values for computed, those of an empty past included.
  if (input && reads_encoder(*node.graph())) return std::nullopt;
  if (input && condition->dtype() == DType::Bool && role_of(*condition) == InputRole::Flag) return true;
  return std::nullopt;
}

bool has_subgraphs(const Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(),
                     [](const Node* node) { return !node->subgraphs().empty(); });
}

// Copies the branch into the graph of the If. What the branch captures is there already.
void inline_branch(Rewriter& rewriter, const Node& node, const Graph& branch) {
  std::unordered_map<const Value*, Value*> copies;
  for (const Value* constant : branch.constants()) {
    copies[constant] = rewriter.add_constant(*constant->constant(), constant->name());
  }
  const auto copy_of = [&](Value* value) {
    const auto found = copies.find(value);
    return found == copies.end() ? value : found->second;
  };
  for (const Node* inner : branch.nodes()) {
    NodeSpec spec{.op = inner->op(),
                  .domain = inner->domain(),
                  .opset = inner->opset(),
                  .name = inner->name(),
                  .attributes = inner->attributes(),
                  .outputs = {}};
    for (Value* input : inner->inputs()) spec.inputs.push_back(input ? copy_of(input) : nullptr);
    for (const Value* output : inner->outputs()) {
      spec.outputs.push_back(output ? OutputSpec{.name = output->name(), .type = output->type()}
                                    : OutputSpec::omitted());
    }
    const Node* copy = rewriter.add_node(std::move(spec));
    for (size_t i = 0; i < inner->outputs().size(); ++i) {
      if (inner->outputs()[i]) copies[inner->outputs()[i]] = copy->outputs()[i];
    }
  }
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    if (node.outputs()[i]) rewriter.replace(node.outputs()[i], copy_of(branch.outputs()[i].value));
  }
}

// The first If that can go, and its branch.
std::pair<const Node*, const Graph*> find_branch(const Graph& graph, PassContext& context,
                                                 PassReport& report) {
  for (const Node* node : graph.nodes()) {
    if (!node->is("If")) continue;
    const auto taken = condition_of(*node);
    const Graph* branch = taken ? node->subgraph(*taken ? "then_branch" : "else_branch") : nullptr;
    if (branch == nullptr || branch->outputs().size() != node->outputs().size()) continue;
    if (!has_subgraphs(*branch)) return {node, branch};
    context.explain_failure(report, *node, "the branch has sub-graphs of its own");
  }
  return {};
}

}  // namespace

InlineBranches::InlineBranches()
    : Pass("inline-branches", "branches that are known to be taken come out of their If") {}

PassReport InlineBranches::run(Graph& graph, PassContext& context) {
  PassReport report;
  for (Graph* each : all_graphs(graph)) {
    for (auto [node, branch] = find_branch(*each, context, report); node != nullptr;
         std::tie(node, branch) = find_branch(*each, context, report)) {
      if (!constant_scalar(node->input(0))) {
        report.notes.push_back("took the branch with a past of " + describe(*node));
      }
      Rewriter rewriter(*each);
      inline_branch(rewriter, *node, *branch);
      rewriter.commit();
      ++report.changes;
    }
  }
  if (report.changes > 0) infer_shapes(graph);
  return report;
}

}  // namespace quern::passes
