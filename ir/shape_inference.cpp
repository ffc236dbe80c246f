#include "ir/shape_inference.h"

#include <algorithm>

#include "ir/schema.h"

namespace quern {
namespace {

// The better known of two statements about one dimension.
Dim merge_dims(const Dim& stated, const Dim& inferred, const Value& value) {
  if (stated.is_constant() && inferred.is_constant() && !(stated == inferred)) {
    throw_error(ErrorCode::InvalidModel, "value '", value.name(), "' is declared with dimension ",
                stated.to_string(), ", but computing it gives ", inferred.to_string());
  }
  if (stated.is_constant()) return stated;
  const std::optional<std::string> symbol = inferred.as_symbol();
  const bool inferred_is_anonymous = symbol && symbol->starts_with('?');
  return inferred_is_anonymous ? stated : inferred;
}

ValueType merge_types(const ValueType& stated, const ValueType& inferred, const Value& value) {
  if (inferred.dtype == DType::Undefined) return stated;
  if (stated.dtype != DType::Undefined && stated.dtype != inferred.dtype) {
    throw_error(ErrorCode::InvalidModel, "value '", value.name(), "' is declared as ",
                to_string(stated.dtype), ", but computing it gives ", to_string(inferred.dtype));
  }
  ValueType merged = inferred;
  if (!stated.shape) return merged;
  if (!inferred.shape) {
    merged.shape = stated.shape;
    return merged;
  }
  if (stated.shape->size() != inferred.shape->size()) {
    throw_error(ErrorCode::InvalidModel, "value '", value.name(), "' is declared with shape ",
                to_string(*stated.shape), ", but computing it gives ", to_string(*inferred.shape));
  }
  for (size_t i = 0; i < merged.shape->size(); ++i) {
    (*merged.shape)[i] = merge_dims((*stated.shape)[i], (*inferred.shape)[i], value);
  }
  return merged;
}

}  // namespace

std::optional<std::vector<Dim>> constant_elements(const Value& value) {
  const Tensor* tensor = value.tensor();
  if (tensor == nullptr || !(is_integer(tensor->dtype()) || tensor->dtype() == DType::Bool))
    return std::nullopt;
  if (tensor->rank() > 1 || tensor->size() > static_cast<int64_t>(kMaxTrackedElements)) return std::nullopt;
  std::vector<Dim> elements;
  for (const int64_t element : tensor->to_ints()) elements.emplace_back(element);
  return elements;
}

InferContext::InferContext(const Node& node)
    : node_(node), types_(node.outputs().size()), elements_(node.outputs().size()) {}

const ValueType& InferContext::input_type(size_t i) const {
  static const ValueType kNone;
  const Value* value = node_.input(i);
  return value ? value->type() : kNone;
}

std::optional<std::vector<Dim>> InferContext::elements(size_t i) const {
  const Value* value = node_.input(i);
  return value ? value->elements() : std::nullopt;
}

std::optional<std::vector<int64_t>> InferContext::constant_ints(size_t i) const {
  const std::optional<std::vector<Dim>> symbolic = elements(i);
  return symbolic ? as_constant(*symbolic) : std::nullopt;
}

void InferContext::set_output(size_t i, DType dtype, std::optional<SymShape> shape) {
  if (i < types_.size()) types_[i] = {dtype, std::move(shape)};
}

void InferContext::set_output(size_t i, ValueType type) {
  if (i < types_.size()) types_[i] = std::move(type);
}

void InferContext::set_elements(size_t i, std::vector<Dim> elements) {
  if (i < elements_.size() && elements.size() <= kMaxTrackedElements) elements_[i] = std::move(elements);
}

void InferContext::fail(const std::string& message) const {
  throw_error(ErrorCode::InvalidModel, describe(node_), ": ", message);
}

std::optional<SymShape> broadcast(const SymShape& a, const SymShape& b) {
  const size_t rank = std::max(a.size(), b.size());
  SymShape out(rank, Dim(1));
  for (size_t i = 0; i < rank; ++i) {
    const Dim da = i < a.size() ? a[a.size() - 1 - i] : Dim(1);
    const Dim db = i < b.size() ? b[b.size() - 1 - i] : Dim(1);
    Dim& result = out[rank - 1 - i];
    if (da == db || db == Dim(1)) {
      result = da;
    } else if (da == Dim(1)) {
      result = db;
    } else if (da.is_constant() && db.is_constant()) {
      return std::nullopt;
    } else {
      result = da.is_constant() ? da : db.is_constant() ? db : Dim::fresh();
    }
  }
  return out;
}

void ShapeInference::infer(Node& node, bool strict) {
  const OpSchema* schema = SchemaTable::instance().find(node);
  if (schema == nullptr || schema->infer == nullptr) return;
  check_arity(node);  // infer functions count on it
  InferContext context(node);
  schema->infer(context);
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    Value* value = node.outputs()[i];
    if (value == nullptr) continue;
    const ValueType& inferred = context.output_types()[i];
    if (strict || value->type_.dtype == DType::Undefined || !value->type_.shape) {
      value->type_ = merge_types(value->type_, inferred, *value);
    }
    if (context.output_elements()[i]) value->elements_ = context.output_elements()[i];
  }
}

void ShapeInference::infer_missing(Node& node) {
  infer(node, false);
}

void ShapeInference::run(Graph& graph) {
  for (const auto& value : graph.owned_values_) {
    if (value->is_constant()) value->elements_ = constant_elements(*value);
  }
  for (Node* node : graph.nodes()) {
    for (Graph* sub : node->subgraphs()) run(*sub);
    infer(*node, true);
  }
}

}  // namespace quern
