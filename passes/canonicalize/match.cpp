#include "passes/canonicalize/match.h"

namespace quern::passes {

std::optional<double> constant_scalar(const Value* value) {
  const Tensor* tensor = value ? value->tensor() : nullptr;
  if (tensor == nullptr || tensor->size() != 1 || tensor->dtype() == DType::String) return std::nullopt;
  return tensor->at(0);
}

std::pair<std::optional<double>, Value*> scalar_operand(const Node& node) {
  if (node.inputs().size() != 2) return {std::nullopt, nullptr};
  const auto a = constant_scalar(node.input(0));
  const auto b = constant_scalar(node.input(1));
  if (a.has_value() == b.has_value()) return {std::nullopt, nullptr};
  return a ? std::pair(a, node.input(1)) : std::pair(b, node.input(0));
}

bool is_constant_expression(const Value* value) {
  if (value == nullptr) return false;
  if (value->is_constant()) return true;
  const Node* node = value->producer();
  if (node == nullptr || !node->subgraphs().empty() || node->inputs().empty()) return false;
  for (const Value* input : node->inputs()) {
    if (input != nullptr && !is_constant_expression(input)) return false;
  }
  return true;
}

Node* sole_user(const Value* value) {
  if (value->uses().size() != 1 || value->graph()->is_output(value)) return nullptr;
  Node* user = value->uses().front().node;
  return user->graph() == value->graph() ? user : nullptr;
}

Value* other_input(const Node& node, const Value* value) {
  if (node.inputs().size() != 2 || (node.input(0) == value) == (node.input(1) == value)) return nullptr;
  return node.input(0) == value ? node.input(1) : node.input(0);
}

Node* produced_by(const Value* value, std::string_view op, std::string_view domain) {
  Node* node = value ? value->producer() : nullptr;
  return node && node->is(op, domain) ? node : nullptr;
}

std::optional<int64_t> last_dim(const Value* value) {
  if (value == nullptr || !value->has_shape() || value->shape().empty()) return std::nullopt;
  return value->shape().back().as_constant();
}

int64_t onnx_code(DType floating) {
  return floating == DType::F16 ? 10 : floating == DType::BF16 ? 16 : 1;
}

Value* skip_casts(Value* value) {
  while (value->producer() != nullptr) {
    const Node* node = value->producer();
    const bool skipped = node->is("Identity") || (node->is("Cast") && is_floating(node->output()->dtype()) &&
                                                  is_floating(node->input(0)->dtype()));
    if (!skipped) break;
    value = node->input(0);
  }
  return value;
}

Value* BatchRewriter::resolve(Value* value) const {
  for (auto found = replaced_.find(value); found != replaced_.end(); found = replaced_.find(value)) {
    value = found->second;
  }
  return value;
}

Node* BatchRewriter::add_node(NodeSpec spec) {
  for (Value*& input : spec.inputs) input = input ? resolve(input) : nullptr;
  return rewriter_.add_node(std::move(spec));
}

Value* BatchRewriter::add(std::string op, std::vector<Value*> inputs, Attributes attributes,
                          std::string domain, std::string name) {
  return add_node({.op = std::move(op),
                   .domain = std::move(domain),
                   .name = std::move(name),
                   .inputs = std::move(inputs),
                   .attributes = std::move(attributes)})
      ->output();
}

void BatchRewriter::replace(Value* old, Value* by) {
  rewriter_.replace(old, by);
  replaced_[old] = by;
}

Value* BatchRewriter::substitute(Value* old, std::string op, std::vector<Value*> inputs,
                                 Attributes attributes, std::string domain, std::string name) {
  Value* by = add_node({.op = std::move(op),
                        .domain = std::move(domain),
                        .name = std::move(name),
                        .inputs = std::move(inputs),
                        .attributes = std::move(attributes),
                        .outputs = {{.type = old->type()}}})
                  ->output();
  replace(old, by);
  return by;
}

bool BatchRewriter::commit() {
  replaced_.clear();
  return rewriter_.commit();
}

}  // namespace quern::passes
