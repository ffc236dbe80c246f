// What flows along an edge while a graph runs.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "ir/graph.h"

namespace quern::runtime {

struct TensorSequence {
  DType dtype = DType::Undefined;  // of every element
  std::vector<Tensor> tensors;
};

// A tensor, a quantized or packed constant, a sequence of tensors, or nothing: an omitted optional input, or
// an empty value of an optional type. Copies are shallow.
class RuntimeValue {
 public:
  RuntimeValue() = default;                                            // nothing
  RuntimeValue(Tensor tensor) : value_(std::move(tensor)) {}           // NOLINT: a tensor is a value
  RuntimeValue(QuantizedTensor tensor) : value_(std::move(tensor)) {}  // NOLINT
  RuntimeValue(PackedTensor tensor) : value_(std::move(tensor)) {}     // NOLINT
  RuntimeValue(TensorSequence sequence)                                // NOLINT
      : value_(std::make_shared<const TensorSequence>(std::move(sequence))) {}
  explicit RuntimeValue(const Constant& constant);

  bool present() const { return !std::holds_alternative<std::monostate>(value_); }
  bool is_sequence() const { return std::holds_alternative<std::shared_ptr<const TensorSequence>>(value_); }

  // Null where the value is of another kind.
  const Tensor* tensor() const { return std::get_if<Tensor>(&value_); }
  const QuantizedTensor* quantized() const { return std::get_if<QuantizedTensor>(&value_); }
  const PackedTensor* packed() const { return std::get_if<PackedTensor>(&value_); }
  // Throws Error{InvalidModel} where the value is no sequence.
  const TensorSequence& sequence() const;

  // The tensor itself, or the F32 values of a quantized or packed one.
  // Throws Error{InvalidModel} for a sequence or nothing.
  Tensor dense() const;
  // Of the dense tensor, or of a sequence's elements; Undefined for nothing.
  DType dtype() const;

 private:
  std::variant<std::monostate, Tensor, QuantizedTensor, PackedTensor, std::shared_ptr<const TensorSequence>>
      value_;
};

// The overload below must not hide those of tensors and shapes.
using quern::to_string;
// "f32 [2, 3]", "sequence of 4 i64", "nothing"
std::string to_string(const RuntimeValue& value);

}  // namespace quern::runtime
