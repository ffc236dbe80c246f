// Products: those of one input become one step, with what follows them in their epilogues.
#include <algorithm>

#include "runtime/cpu/linear_input.h"
#include "runtime/decoder/compiler.h"

namespace quern::runtime {

struct EntryCompiler::Planned {
  const Node* node;
  const Value* result;  // what the product stores, after what was folded in
  Product product;
  std::vector<const Node*> folded;
  const Node* up = nullptr;
};

namespace {

bool is_linear(const Node* node) {
  return node != nullptr && node->is("Linear", kQuernDomain);
}

const Value* other_input(const Node& node, const Value* value) {
  return node.input(0) == value ? node.input(1) : node.input(0);
}

}  // namespace

bool unary_of(const Node& node, cpu::Unary& op) {
  const bool onnx = node.domain() == kOnnxDomain;
  if (node.input(1) != nullptr) return false;
  if (onnx && node.op() == "Relu") {
    op = cpu::Unary::Relu;
  } else if (onnx && node.op() == "Sigmoid") {
    op = cpu::Unary::Sigmoid;
  } else if (onnx && node.op() == "Tanh") {
    op = cpu::Unary::Tanh;
  } else if (onnx && node.op() == "Erf") {
    op = cpu::Unary::Erf;
  } else if (onnx && node.op() == "Exp") {
    op = cpu::Unary::Exp;
  } else if (node.op() == "Gelu") {
    op = node.string_attribute("approximate", "none") == "tanh" ? cpu::Unary::GeluTanh : cpu::Unary::Gelu;
  } else if (node.is("FastGelu", kMicrosoftDomain)) {
    op = cpu::Unary::GeluTanh;
  } else if (node.op() == "Swish" || node.is("QuickGelu", kMicrosoftDomain)) {
    const float alpha = node.float_attribute("alpha", node.op() == "Swish" ? 1.0f : 1.702f);
    if (alpha != 1.0f && alpha != 1.702f) return false;
    op = alpha == 1.0f ? cpu::Unary::Silu : cpu::Unary::GeluQuick;
  } else {
    return false;
  }
  return true;
}

const float* EntryCompiler::bias_of(const Node& node, size_t input, int64_t width) {
  const Value* value = node.input(input);
  if (value == nullptr) return nullptr;
  if (!value->is_constant()) unsupported(node, concat("'", value->name(), "' is not a constant"));
  const std::vector<float>& bias = context_.constant(node, *value);
  if (static_cast<int64_t>(bias.size()) != width) {
    invalid(node, concat("'", value->name(), "' has ", bias.size(), " elements, ", width, " were expected"));
  }
  return bias.data();
}

EntryCompiler::Planned EntryCompiler::plan_linear(const Node& node) {
  const RowValue& x = row_input(node, 0);
  const Value* weight = node.input(1);
  if (weight == nullptr || !weight->is_constant()) unsupported(node, "its weight is not a constant");
  Planned planned{.node = &node, .result = node.output()};
  planned.product.weight = &context_.weight(node, *weight);
  if (planned.product.weight->cols() != x.features.back()) {
    invalid(node, concat("the input has ", x.features.back(), " features, the weight takes ",
                         planned.product.weight->cols()));
  }
  if (x.features.size() != 1) unsupported(node, "its input has more than one dimension of features");
  planned.product.bias = bias_of(node, 2, planned.product.weight->rows());
  planned.folded.push_back(&node);
  return planned;
}

// activation(W x) * (U x): the activation and the other product go into this one.
void EntryCompiler::fold_gate(Planned& planned) {
  const Node* user = sole_user(planned.result);
  cpu::Unary op;
  if (user != nullptr && unary_of(*user, op)) {
    planned.product.activation = op;
    planned.folded.push_back(user);
    planned.result = user->output();
    user = sole_user(planned.result);
  }
  if (user == nullptr || !user->is("Mul")) return;
  const Value* other = other_input(*user, planned.result);
  const Node* up = other != nullptr ? other->producer() : nullptr;
  if (!is_linear(up) || up == planned.node || done_.contains(up) || up->input(0) != planned.node->input(0) ||
      sole_user(other) != user) {
    return;
  }
  const Planned partner = plan_linear(*up);
  if (partner.product.weight->spec() != planned.product.weight->spec()) return;
  if (activation_scheme(*up) != activation_scheme(*planned.node)) return;
  planned.product.up = partner.product.weight;
  planned.product.up_bias = partner.product.bias;
  planned.up = up;
  planned.folded.insert(planned.folded.end(), {up, user});
  planned.result = user->output();
}

void EntryCompiler::fold_residual(Planned& planned) {
  const Node* user = sole_user(planned.result);
  if (user == nullptr || !user->is("Add")) return;
  const RowValue* other = find_row(other_input(*user, planned.result));
  const RowValue& x = row_input(*planned.node, 0);
  if (other == nullptr || other->space != x.space || other->features != Shape{planned.product.weight->rows()})
    return;
  planned.product.residual = other->at;
  planned.folded.push_back(user);
  planned.result = user->output();
}

void EntryCompiler::linear(const Node& node) {
  const RowValue x = row_input(node, 0);
  std::vector<Planned> group;
  for (const Use& use : node.input(0)->uses()) {
    if (use.input == 0 && is_linear(use.node) && needed_nodes_.contains(use.node) &&
        !done_.contains(use.node)) {
      group.push_back(plan_linear(*use.node));
    }
  }
  std::vector<const Node*> ups;
  for (Planned& planned : group) {
    if (std::find(ups.begin(), ups.end(), planned.node) != ups.end()) continue;
    fold_gate(planned);
    if (planned.up != nullptr) ups.push_back(planned.up);
  }
  std::erase_if(group,
                [&](const Planned& p) { return std::find(ups.begin(), ups.end(), p.node) != ups.end(); });
  for (Planned& planned : group) fold_residual(planned);

  Encoding encoding;
  for (Planned& planned : group) {
    const cpu::ActivationFormat format = cpu::input_format(
        activation_scheme(*planned.node), planned.product.weight->spec(), context_.activation_mode);
    const auto found = std::find(encoding.formats.begin(), encoding.formats.end(), format);
    planned.product.format = static_cast<size_t>(found - encoding.formats.begin());
    if (found == encoding.formats.end()) encoding.formats.push_back(format);
  }
  plan_.encodings.push_back(encoding.formats);
  add_step(std::make_unique<EncodeStep>(encoding, x.at), node, x.space);
  for (size_t first = 0; first < group.size(); first += LinearStep::kMaxProducts) {
    std::vector<Product> products;
    const size_t last = std::min(group.size(), first + LinearStep::kMaxProducts);
    for (size_t i = first; i < last; ++i) {
      Planned& planned = group[i];
      planned.product.y = define(planned.result, x.space, {planned.product.weight->rows()});
      products.push_back(planned.product);
      done_.insert(planned.folded.begin(), planned.folded.end());
    }
    add_step(std::make_unique<LinearStep>(encoding, std::move(products)), *group[first].node, x.space);
  }
}

}  // namespace quern::runtime
