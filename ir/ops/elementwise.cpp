#include "ir/ops/infer_common.h"
#include "ir/ops/register.h"

namespace quern {
namespace {

// Add, Sub and Mul also compute on symbolic elements: shape arithmetic.
void infer_arithmetic(InferContext& context) {
  infer_broadcast(context);
  const auto a = context.elements(0);
  const auto b = context.elements(1);
  if (!a || !b || (a->size() != b->size() && a->size() != 1 && b->size() != 1)) return;
  std::vector<Dim> result;
  for (size_t i = 0; i < std::max(a->size(), b->size()); ++i) {
    const Dim& x = (*a)[a->size() == 1 ? 0 : i];
    const Dim& y = (*b)[b->size() == 1 ? 0 : i];
    const std::string& op = context.node().op();
    result.push_back(op == "Add" ? x + y : op == "Sub" ? x - y : x * y);
  }
  context.set_elements(0, std::move(result));
}

}  // namespace

void register_elementwise_schemas(SchemaTable& table) {
  for (const char* op : {"Add", "Sub", "Mul"}) {
    table.add({.op = op, .min_inputs = 2, .max_inputs = 2, .infer = infer_arithmetic});
  }
  for (const char* op : {"Relu", "Sigmoid", "Tanh", "Neg", "Sqrt", "Exp", "Erf", "Gelu", "Swish"}) {
    table.add({.op = op, .min_inputs = 1, .max_inputs = 1, .infer = infer_same_as_input});
  }
}

}  // namespace quern
