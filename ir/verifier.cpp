#include "ir/verifier.h"

#include <algorithm>
#include <set>

#include "ir/schema.h"
#include "ir/shape_inference.h"

namespace quern {
namespace {

bool in_scope(const Value& value, const Graph& graph) {
  for (const Graph* scope = &graph; scope != nullptr;) {
    if (value.graph() == scope) return true;
    scope = scope->parent() ? scope->parent()->graph() : nullptr;
  }
  return false;
}

void verify_node(const Node& node, const Graph& graph) {
  check_arity(node);
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    const Value* value = node.inputs()[i];
    if (value == nullptr) continue;
    if (!in_scope(*value, graph)) {
      throw_error(ErrorCode::InvalidModel, describe(node), ": input '", value->name(),
                  "' is not defined here");
    }
    const Use use{const_cast<Node*>(&node), static_cast<int>(i)};
    if (std::count(value->uses().begin(), value->uses().end(), use) != 1) {
      throw_error(ErrorCode::Internal, describe(node), ": the use of '", value->name(),
                  "' is not recorded once");
    }
  }
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    const Value* value = node.outputs()[i];
    if (value == nullptr) continue;
    if (value->producer() != &node || value->output_index() != static_cast<int>(i) || value->is_constant()) {
      throw_error(ErrorCode::Internal, describe(node), ": output '", value->name(), "' has another producer");
    }
  }
}

// Types that the schema gives must not contradict those recorded.
void verify_types(const Node& node) {
  const OpSchema* schema = SchemaTable::instance().find(node);
  if (schema == nullptr || schema->infer == nullptr) return;
  InferContext context(node);
  schema->infer(context);
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    const Value* value = node.outputs()[i];
    const ValueType& inferred = context.output_types()[i];
    if (value == nullptr || inferred.dtype == DType::Undefined || value->dtype() == DType::Undefined)
      continue;
    const bool rank_differs =
        inferred.shape && value->has_shape() && inferred.shape->size() != value->shape().size();
    if (inferred.dtype != value->dtype() || rank_differs) {
      throw_error(ErrorCode::InvalidModel, describe(node), ": output '", value->name(), "' is recorded as ",
                  to_string(value->type()), ", but the operator gives ", to_string(inferred));
    }
  }
}

}  // namespace

void verify(const Graph& graph) {
  std::set<std::string> names;
  for (const Value* value : graph.values()) {
    if (value->name().empty() || !names.insert(value->name()).second) {
      throw_error(ErrorCode::InvalidModel, "the name '", value->name(), "' of a value is empty or taken");
    }
    if (const QuantizedTensor* quantized = value->quantized()) {
      with_context("checking constant '" + value->name() + "'", [&] { quantized->check(); });
    }
  }
  for (const Node* node : graph.nodes()) {
    verify_node(*node, graph);
    verify_types(*node);
    for (const Graph* sub : node->subgraphs()) {
      if (sub->parent() != node)
        throw_error(ErrorCode::Internal, describe(*node), ": a sub-graph has lost its parent");
      verify(*sub);
    }
  }
  for (const GraphOutput& output : graph.outputs()) {
    if (output.value == nullptr || !in_scope(*output.value, graph)) {
      throw_error(ErrorCode::InvalidModel, "graph output '", output.name, "' is not defined");
    }
  }
}

}  // namespace quern
