#include "passes/interchange/emitter.h"

#include <algorithm>

namespace quern::passes {
namespace {

// How ONNX numbers the types that casts lead to here.
int64_t cast_code(DType dtype) {
  switch (dtype) {
    case DType::U8:
      return 2;
    case DType::I32:
      return 6;
    case DType::I64:
      return 7;
    case DType::Bool:
      return 9;
    default:
      return onnx_code(dtype);
  }
}

}  // namespace

Node* Emitter::node(std::string op, std::vector<Value*> inputs, Attributes attributes, size_t outputs,
                    std::string domain) {
  while (!inputs.empty() && inputs.back() == nullptr) inputs.pop_back();
  const int opset = domain.empty() ? opset_ : newest_opset(domain);
  return batch_.add_node({.op = std::move(op),
                          .domain = std::move(domain),
                          .opset = opset,
                          .inputs = std::move(inputs),
                          .attributes = std::move(attributes),
                          .outputs = std::vector<OutputSpec>(outputs)});
}

Value* Emitter::cast(Value* value, DType dtype) {
  return add("Cast", {value}, {{"to", cast_code(dtype)}});
}

Value* Emitter::ints(const std::vector<int64_t>& values) {
  Value*& made = ints_[{true, values}];
  if (made == nullptr) {
    made = batch_.add_constant(
        Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, std::span<const int64_t>(values)));
  }
  return made;
}

Value* Emitter::integer(int64_t value) {
  Value*& made = ints_[{false, {value}}];
  if (made == nullptr) made = batch_.add_constant(Tensor::scalar(value));
  return made;
}

Value* Emitter::scalar(float value, DType dtype) {
  constexpr float kLargestHalf = 65504;
  if (dtype == DType::F16) value = std::clamp(value, -kLargestHalf, kLargestHalf);
  Value*& made = scalars_[{value, dtype}];
  if (made == nullptr) made = batch_.add_constant(Tensor::scalar(value).cast(dtype));
  return made;
}

Value* Emitter::reduce(std::string op, Value* x) {
  constexpr int kAxesAreInput = 18;
  if (opset_ < kAxesAreInput) return add(std::move(op), {x}, {{"axes", std::vector<int64_t>{-1}}});
  return add(std::move(op), {x, ints({-1})});
}

}  // namespace quern::passes
