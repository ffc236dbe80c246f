#include "passes/cleanup/node_facts.h"

#include <set>

#include "ir/schema.h"

namespace quern::passes {

bool is_pure(const Node& node) {
  static const std::set<std::string> kImpure = {"RandomNormal",      "RandomUniform", "RandomNormalLike",
                                                "RandomUniformLike", "Multinomial",   "Bernoulli",
                                                "CachedAttention",   "SelectRows"};
  if (node.domain() != kOnnxDomain && node.domain() != kMicrosoftDomain && node.domain() != kQuernDomain)
    return false;
  if (kImpure.contains(node.op())) return false;
  // Dropout and BatchNormalization in training draw numbers or keep statistics.
  if (node.is("Dropout") && node.input(2) != nullptr && !is_filled_with(node.input(2), 0)) return false;
  return node.int_attribute("training_mode", 0) == 0;
}

bool same_shape(const Value* a, const Value* b) {
  return a && b && a->has_shape() && b->has_shape() && a->shape() == b->shape();
}

bool same_type(const Value* a, const Value* b) {
  return same_shape(a, b) && a->dtype() == b->dtype() && a->dtype() != DType::Undefined &&
         a->type().kind == b->type().kind;
}

IntsParameter ints_parameter(const Node& node, size_t input, const std::string& attribute) {
  if (node.has_attribute(attribute)) return {true, node.ints_attribute(attribute, {})};
  const Value* value = node.input(input);
  if (value == nullptr) return {};
  if (!value->elements()) return {true, std::nullopt};
  return {true, as_constant(*value->elements())};
}

bool is_filled_with(const Value* value, double number) {
  const Tensor* tensor = value ? value->tensor() : nullptr;
  if (tensor == nullptr || tensor->dtype() == DType::String || tensor->size() == 0) return false;
  for (int64_t i = 0; i < tensor->size(); ++i) {
    if (tensor->at(i) != number) return false;
  }
  return true;
}

}  // namespace quern::passes
