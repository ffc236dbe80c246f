// Element types of tensors.
#pragma once

#include <cstdint>
#include <string_view>

namespace quern {

enum class DType : uint8_t {
  Undefined,
  F32,
  F64,
  F16,
  BF16,
  F8E4M3,      // "fn": no infinities, one NaN pattern per sign
  F8E4M3FNUZ,  // no negative zero, one NaN
  F8E5M2,
  F8E5M2FNUZ,
  F4E2M1,
  F8E8M0,  // a power-of-two scale
  I64,
  I32,
  I16,
  I8,
  I4,
  I2,
  U64,
  U32,
  U16,
  U8,
  U4,
  U2,
  Bool,    // one byte, 0 or 1
  String,  // std::string elements; only in Tensor::strings()
};

// "f32", "i4", "bool", ...
std::string_view to_string(DType dtype);
// The inverse of to_string; throws Error{InvalidArgument} on an unknown name.
DType dtype_from_string(std::string_view name);

// TensorProto.DataType, as attributes such as Cast's `to` hold it: 1 is f32. Undefined for a number that is
// none of ours, and 0 for Undefined.
DType dtype_from_onnx_number(int64_t number);
int64_t onnx_number(DType dtype);

// Bits of one element: 32 for f32, 4 for i4, 8 for bool. 0 for Undefined and String.
int bit_width(DType dtype);

bool is_floating(DType dtype);        // f64 down to f4e2m1, not f8e8m0
bool is_integer(DType dtype);         // signed and unsigned, not bool
bool is_signed_integer(DType dtype);  // i64 down to i2
bool is_sub_byte(DType dtype);        // packed, the first element in the low bits

// Bytes that `count` elements take, packed: ceil(count * bits / 8).
// Throws Error{InvalidModel} where that overflows, or for String.
int64_t byte_size(DType dtype, int64_t count);

}  // namespace quern
