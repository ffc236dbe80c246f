#include "runtime/decoder/position_use.h"

#include <algorithm>

#include "ir/error.h"
#include "ir/schema.h"

namespace quern::runtime {
namespace {

bool is_attention(const Node& node) {
  return node.is("CachedAttention", kQuernDomain);
}

const Node* rotary_before(const Value* value) {
  const Node* node = value != nullptr ? value->producer() : nullptr;
  return node != nullptr && node->is("Rotary", kQuernDomain) ? node : nullptr;
}

// Whether all that reads the turned heads are queries and keys of attention.
bool turns_heads_alone(const Graph& graph, const Node& rotary) {
  const auto& uses = rotary.output()->uses();
  return !graph.is_output(rotary.output()) && std::all_of(uses.begin(), uses.end(), [](const Use& use) {
    if (is_attention(*use.node)) return use.input < 2;
    return use.node->is("AppendCache", kQuernDomain) && use.input == 0;
  });
}

bool same_turns(const Node* q, const Node* k) {
  if (q == nullptr || k == nullptr) return q == k;
  return q->input(2) == k->input(2) &&
         q->int_attribute("interleaved", 0) == k->int_attribute("interleaved", 0);
}

std::string fixed_by_use(const Graph& graph) {
  for (const Value* input : graph.inputs()) {
    if (input->name() != "positions") continue;
    for (const Use& use : input->uses()) {
      const Node& node = *use.node;
      if (!node.is("Rotary", kQuernDomain) || use.input != 1)
        return concat(describe(node), " adds positions to what layers compute");
      if (node.input(3) != nullptr) return concat(describe(node), " turns by the length of the text");
      if (!turns_heads_alone(graph, node)) return concat(describe(node), " turns more than queries and keys");
    }
  }
  return {};
}

}  // namespace

void find_position_use(const Graph& graph, DecoderPlan& plan) {
  plan.fixed_positions = fixed_by_use(graph);
  for (const Node* node : graph.nodes()) {
    if (!plan.fixed_positions.empty()) return;
    if (!is_attention(*node)) continue;
    const Node* rotary = rotary_before(node->input(1));
    PlanLayer& layer = plan.layers[static_cast<size_t>(node->int_attribute("layer", -1))];
    if (!same_turns(rotary_before(node->input(0)), rotary)) {
      plan.fixed_positions = concat(describe(*node), " turns queries and keys differently");
    } else if (rotary != nullptr && rotary->int_attribute("head_size", 0) != layer.shape.key_size) {
      plan.fixed_positions = concat(describe(*rotary), " turns parts of heads");
    } else if (rotary != nullptr) {
      const Tensor* frequencies = rotary->input(2) != nullptr ? rotary->input(2)->tensor() : nullptr;
      if (frequencies == nullptr) {
        plan.fixed_positions = concat(describe(*rotary), " turns by what is no constant");
        return;
      }
      layer.rotation = {.frequencies = frequencies->to_floats(),
                        .interleaved = rotary->int_attribute("interleaved", 0) != 0};
    }
  }
}

}  // namespace quern::runtime
