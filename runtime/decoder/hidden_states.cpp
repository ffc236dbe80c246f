#include "runtime/decoder/hidden_states.h"

#include <algorithm>
#include <map>

#include "ir/error.h"
#include "ir/schema.h"

namespace quern::runtime {
namespace {

bool is_linear(const Node* node) {
  return node != nullptr && node->is("Linear", kQuernDomain);
}

bool is_skip_norm(const Node& node) {
  return node.op() == "SkipSimplifiedLayerNormalization" || node.op() == "SkipLayerNormalization";
}

bool is_norm(const Node& node) {
  return is_skip_norm(node) || node.op() == "RMSNormalization" || node.op() == "LayerNormalization" ||
         node.op() == "SimplifiedLayerNormalization";
}

// The first product on the way back along what is no constant: past rotation, norms per head, reshapes,
// softcap.
Node* product_behind(Value* value) {
  while (value != nullptr && value->producer() != nullptr && !is_linear(value->producer())) {
    const auto& inputs = value->producer()->inputs();
    const auto next = std::find_if(inputs.begin(), inputs.end(), [](const Value* input) {
      return input != nullptr && !input->is_constant();
    });
    value = next != inputs.end() ? *next : nullptr;
  }
  return value != nullptr ? value->producer() : nullptr;
}

Node* norm_behind(const Value* value) {
  Node* node = value->producer();
  while (node != nullptr && (node->op() == "Identity" || node->op() == "Cast" || node->op() == "Mul" ||
                             node->is("SelectRows", kQuernDomain))) {
    // (1 + w) norms and the like end in a product with a constant.
    if (node->op() == "Mul" && (node->input(1) == nullptr || !node->input(1)->is_constant())) return nullptr;
    node = node->input(0) != nullptr ? node->input(0)->producer() : nullptr;
  }
  return node != nullptr && is_norm(*node) ? node : nullptr;
}

// The residual stream that a product reads, by way of a norm or directly.
Value* stream_before(Value* input) {
  const Node* norm = norm_behind(input);
  if (norm == nullptr) return input;
  return is_skip_norm(*norm) ? norm->output(3) : norm->input(0);
}

}  // namespace

HiddenStates find_hidden_states(const Graph& graph, const std::string& output) {
  HiddenStates found;
  std::map<int64_t, Node*> layers;
  for (Node* node : graph.nodes()) {
    if (node->is("CachedAttention", kQuernDomain)) layers[node->int_attribute("layer", -1)] = node;
  }
  for (const GraphOutput& each : graph.outputs()) {
    if (each.name == output) found.head = product_behind(each.value);
  }
  if (found.head == nullptr || layers.empty()) {
    throw_error(
        ErrorCode::InvalidArgument, "the graph '", graph.name(),
        "' is no canonical decoder: it has no attention with a cache, or no product behind an output '",
        output, "'");
  }
  found.after_final_norm = found.head->input(0);
  found.final_norm = norm_behind(found.after_final_norm);
  found.before_final_norm = stream_before(found.after_final_norm);
  for (const auto& [layer, attention] : layers) {
    if (layer == 0) continue;
    const Node* query = product_behind(attention->input(0));
    found.after_block.push_back(query != nullptr ? stream_before(query->input(0)) : nullptr);
  }
  found.after_block.push_back(found.before_final_norm);
  return found;
}

}  // namespace quern::runtime
