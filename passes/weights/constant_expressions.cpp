#include "passes/weights/constant_expressions.h"

#include <algorithm>
#include <iterator>

#include "ir/schema.h"
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

namespace {

// PyTorch's exporter numbers the constants that it folded: "onnx::MatMul_1483", "412".
bool is_numbered(const std::string& name) {
  return name.starts_with("onnx::") || name.find_first_not_of("0123456789") == std::string::npos;
}

// "/model/layers.0/self_attn/q_proj/MatMul" -> "model.layers.0.self_attn.q_proj.weight"
std::string name_in_module(const Node& node) {
  std::string name = node.name();
  const size_t last = name.rfind('/');
  if (last == std::string::npos || last == 0) return "";
  name.resize(last);
  std::replace(name.begin(), name.end(), '/', '.');
  return name.substr(name.find_first_not_of('.')) + ".weight";
}

// After the module of the first node that takes the value as its weight.
std::string name_by_use(const Value& value) {
  static constexpr std::string_view kForms[] = {"Transpose", "Cast", "Reshape", "Identity",
                                                "DequantizeLinear"};
  const Value* at = &value;
  while (!at->uses().empty()) {
    const Node& node = *at->uses().front().node;
    const bool is_form =
        std::any_of(std::begin(kForms), std::end(kForms), [&](auto op) { return node.is(op); });
    if (!is_form && !node.is("QuantizeWeight", kQuernDomain) && !node.is("PackWeight", kQuernDomain))
      return name_in_module(node);
    at = node.output();
  }
  return "";
}

}  // namespace

std::string weight_name(const Value& value) {
  const std::vector<Value*> sources = source_constants(const_cast<Value*>(&value));
  const Value* largest = &value;
  int64_t bytes = -1;
  for (const Value* source : sources) {
    if (byte_size(*source->constant()) <= bytes) continue;
    bytes = byte_size(*source->constant());
    largest = source;
  }
  if (!is_numbered(largest->name())) return largest->name();
  const std::string named = name_by_use(value);
  return named.empty() ? largest->name() : named;
}

}  // namespace quern::passes
