#include "runtime/runtime_value.h"

namespace quern::runtime {

RuntimeValue::RuntimeValue(const Constant& constant) {
  std::visit([this](const auto& data) { value_ = data; }, constant);
}

const TensorSequence& RuntimeValue::sequence() const {
  const auto* sequence = std::get_if<std::shared_ptr<const TensorSequence>>(&value_);
  if (sequence == nullptr) {
    throw_error(ErrorCode::InvalidModel, "expected a sequence of tensors, found ", to_string(*this));
  }
  return **sequence;
}

Tensor RuntimeValue::dense() const {
  if (const Tensor* plain = tensor()) return *plain;
  if (const QuantizedTensor* codes = quantized()) return dequantize(*codes);
  if (const PackedTensor* tiles = packed()) return tiles->dequantize();
  throw_error(ErrorCode::InvalidModel, "expected a tensor, found ", to_string(*this));
}

DType RuntimeValue::dtype() const {
  if (const Tensor* plain = tensor()) return plain->dtype();
  if (quantized() != nullptr || packed() != nullptr) return DType::F32;
  return is_sequence() ? sequence().dtype : DType::Undefined;
}

std::string to_string(const RuntimeValue& value) {
  if (const Tensor* plain = value.tensor()) {
    return concat(quern::to_string(plain->dtype()), " ", quern::to_string(plain->shape()));
  }
  if (const QuantizedTensor* codes = value.quantized()) {
    return concat(quern::to_string(codes->scheme), " ", quern::to_string(codes->shape()));
  }
  if (const PackedTensor* tiles = value.packed()) {
    return concat("packed ", quern::to_string(tiles->spec().layout), " ", quern::to_string(tiles->shape()));
  }
  if (value.is_sequence()) {
    const TensorSequence& sequence = value.sequence();
    return concat("sequence of ", sequence.tensors.size(), " ", quern::to_string(sequence.dtype));
  }
  return "nothing";
}

}  // namespace quern::runtime
