#include "passes/weights/constant_expressions.h"

#include <algorithm>

#include "passes/cleanup/node_facts.h"

namespace quern::passes {

ConstantExpressions::ConstantExpressions(const Graph& graph) {
  const std::vector<Node*>& nodes = graph.nodes();
  const auto is_constant_node = [&](const Node& node) {
    return node.subgraphs().empty() && is_pure(node) &&
           std::any_of(node.inputs().begin(), node.inputs().end(),
                       [](const Value* v) { return v != nullptr; }) &&
           std::all_of(node.inputs().begin(), node.inputs().end(),
                       [&](const Value* value) { return value == nullptr || contains(value); });
  };
  for (const Node* node : nodes) {
    if (!is_constant_node(*node)) continue;
    for (const Value* output : node->outputs()) {
      if (output != nullptr) computed_.insert(output);
    }
  }
  const auto is_outside = [&](const Use& use) {
    const auto& outputs = use.node->outputs();
    return std::any_of(outputs.begin(), outputs.end(),
                       [&](const Value* output) { return output != nullptr && !computed_.contains(output); });
  };
  for (const Node* node : nodes) {
    for (Value* output : node->outputs()) {
      if (output == nullptr || !computed_.contains(output)) continue;
      if (graph.is_output(output) || std::any_of(output->uses().begin(), output->uses().end(), is_outside)) {
        roots_.push_back(output);
      }
    }
  }
}

namespace {

void collect_sources(Value* value, std::unordered_set<const Value*>& seen, std::vector<Value*>& sources) {
  if (!seen.insert(value).second) return;
  if (value->is_constant()) return sources.push_back(value);
  if (value->producer() == nullptr) return;
  for (Value* input : value->producer()->inputs()) {
    if (input != nullptr) collect_sources(input, seen, sources);
  }
}

}  // namespace

std::vector<Value*> source_constants(Value* value) {
  std::unordered_set<const Value*> seen;
  std::vector<Value*> sources;
  collect_sources(value, seen, sources);
  return sources;
}

std::string weight_name(const Value& value) {
  const std::vector<Value*> sources = source_constants(const_cast<Value*>(&value));
  const Value* largest = &value;
  int64_t bytes = -1;
  for (const Value* source : sources) {
    if (byte_size(*source->constant()) <= bytes) continue;
    bytes = byte_size(*source->constant());
    largest = source;
  }
  return largest->name();
}

}  // namespace quern::passes
