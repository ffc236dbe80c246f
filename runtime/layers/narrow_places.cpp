#include "runtime/layers/narrow_places.h"

#include <algorithm>

#include "ir/schema.h"

namespace quern::runtime {
namespace {

std::set<const Node*> ancestors(const Value* value) {
  std::set<const Node*> found;
  std::vector<const Value*> pending = {value};
  while (!pending.empty()) {
    const Node* node = pending.back()->producer();
    pending.pop_back();
    if (node == nullptr || !found.insert(node).second) continue;
    for (const Value* input : node->inputs()) {
      if (input != nullptr) pending.push_back(input);
    }
  }
  return found;
}

}  // namespace

bool is_skip_norm(const Node& node) {
  return node.domain() == kMicrosoftDomain &&
         (node.op() == "SkipSimplifiedLayerNormalization" || node.op() == "SkipLayerNormalization");
}

NarrowPlaces::NarrowPlaces(const Graph& graph, const Value* target, const std::set<const Value*>& flowing)
    : flowing_(flowing), target_(target) {
  const std::set<const Node*> needed = ancestors(target);
  for (Node* node : graph.nodes()) {
    if (!needed.contains(node)) continue;
    if (std::any_of(node->outputs().begin(), node->outputs().end(), [&](const Value* v) { return flows(v); }))
      order_.push_back(node);
  }
  on_the_way_.insert(order_.begin(), order_.end());
}

LayerBoundary NarrowPlaces::at(Node& node) {
  for (const Value* input : node.inputs()) {
    if (!flows(input)) continue;
    const auto open = open_.find(input);
    if (open != open_.end() && --open->second == 0) open_.erase(open);
  }
  std::vector<Value*> mine;
  for (Value* output : node.outputs()) {
    if (!flows(output)) continue;
    int64_t uses = output == target_ ? 1 : 0;
    for (const Use& use : output->uses()) uses += on_the_way_.contains(use.node) ? 1 : 0;
    if (uses == 0) continue;
    open_[output] = uses;
    mine.push_back(output);
  }
  if (open_.size() != mine.size()) return {};
  if (mine.size() == 1) return {&node, mine[0], nullptr};
  if (is_skip_norm(node) && mine.size() == 2 && mine[1] == node.output(3)) return {&node, mine[1], mine[0]};
  return {};
}

void part_final_norm(std::vector<LayerBoundary>& boundaries) {
  LayerBoundary& last = boundaries.back();
  if (!is_skip_norm(*last.node) || last.stream != last.node->output(0)) return;
  for (size_t i = 1; i + 1 < boundaries.size(); ++i) {
    if (is_skip_norm(*boundaries[i].node) && boundaries[i].stream == boundaries[i].node->output(0)) return;
  }
  last.normed = last.stream;
  last.stream = last.node->output(3);
}

}  // namespace quern::runtime
