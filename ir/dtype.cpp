#include "ir/dtype.h"

#include <array>
#include <utility>

#include "ir/error.h"

namespace quern {
namespace {

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  int bits;
};

constexpr std::array kInfos = {
    DTypeInfo{DType::Undefined, "undefined", 0},
    DTypeInfo{DType::F32, "f32", 32},
    DTypeInfo{DType::F64, "f64", 64},
    DTypeInfo{DType::F16, "f16", 16},
    DTypeInfo{DType::BF16, "bf16", 16},
    DTypeInfo{DType::F8E4M3, "f8e4m3", 8},
    DTypeInfo{DType::F8E4M3FNUZ, "f8e4m3fnuz", 8},
    DTypeInfo{DType::F8E5M2, "f8e5m2", 8},
    DTypeInfo{DType::F8E5M2FNUZ, "f8e5m2fnuz", 8},
    DTypeInfo{DType::F4E2M1, "f4e2m1", 4},
    DTypeInfo{DType::F8E8M0, "f8e8m0", 8},
    DTypeInfo{DType::I64, "i64", 64},
    DTypeInfo{DType::I32, "i32", 32},
    DTypeInfo{DType::I16, "i16", 16},
    DTypeInfo{DType::I8, "i8", 8},
    DTypeInfo{DType::I4, "i4", 4},
    DTypeInfo{DType::I2, "i2", 2},
    DTypeInfo{DType::U64, "u64", 64},
    DTypeInfo{DType::U32, "u32", 32},
    DTypeInfo{DType::U16, "u16", 16},
    DTypeInfo{DType::U8, "u8", 8},
    DTypeInfo{DType::U4, "u4", 4},
    DTypeInfo{DType::U2, "u2", 2},
    DTypeInfo{DType::Bool, "bool", 8},
    DTypeInfo{DType::String, "string", 0},
};

const DTypeInfo& info(DType dtype) {
  const auto index = static_cast<size_t>(dtype);  // the table is in the order of the enumeration
  if (index < kInfos.size() && kInfos[index].dtype == dtype) return kInfos[index];
  throw_error(ErrorCode::Internal, "dtype ", static_cast<int>(dtype), " has no table entry");
}

// By TensorProto.DataType. Undefined: complex numbers.
constexpr std::array kOnnxNumbers = {
    DType::Undefined,  DType::F32,    DType::U8,         DType::I8,        DType::U16,  DType::I16,
    DType::I32,        DType::I64,    DType::String,     DType::Bool,      DType::F16,  DType::F64,
    DType::U32,        DType::U64,    DType::Undefined,  DType::Undefined, DType::BF16, DType::F8E4M3,
    DType::F8E4M3FNUZ, DType::F8E5M2, DType::F8E5M2FNUZ, DType::U4,        DType::I4,   DType::F4E2M1,
    DType::F8E8M0,     DType::U2,     DType::I2,
};

}  // namespace

DType dtype_from_onnx_number(int64_t number) {
  return number >= 0 && number < static_cast<int64_t>(kOnnxNumbers.size())
             ? kOnnxNumbers[static_cast<size_t>(number)]
             : DType::Undefined;
}

int64_t onnx_number(DType dtype) {
  for (size_t i = 1; i < kOnnxNumbers.size(); ++i) {
    if (kOnnxNumbers[i] == dtype && dtype != DType::Undefined) return static_cast<int64_t>(i);
  }
  return 0;
}

std::string_view to_string(DType dtype) {
  return info(dtype).name;
}

DType dtype_from_string(std::string_view name) {
  for (const DTypeInfo& entry : kInfos) {
    if (entry.name == name) return entry.dtype;
  }
  throw_error(ErrorCode::InvalidArgument, "unknown element type '", name, "'");
}

int bit_width(DType dtype) {
  return info(dtype).bits;
}

bool is_floating(DType dtype) {
  return dtype >= DType::F32 && dtype <= DType::F4E2M1;
}

bool is_integer(DType dtype) {
  return dtype >= DType::I64 && dtype <= DType::U2;
}

bool is_signed_integer(DType dtype) {
  return dtype >= DType::I64 && dtype <= DType::I2;
}

bool is_sub_byte(DType dtype) {
  const int bits = bit_width(dtype);
  return bits > 0 && bits < 8;
}

int64_t byte_size(DType dtype, int64_t count) {
  const int bits = bit_width(dtype);
  if (bits == 0 && count != 0) {
    throw_error(ErrorCode::InvalidModel, "elements of type ", to_string(dtype), " have no byte size");
  }
  int64_t total_bits = 0;
  if (count < 0 || __builtin_mul_overflow(count, static_cast<int64_t>(bits), &total_bits) ||
      __builtin_add_overflow(total_bits, static_cast<int64_t>(7), &total_bits)) {
    throw_error(ErrorCode::InvalidModel, "a tensor of ", count, " elements of ", to_string(dtype),
                " is too large");
  }
  return total_bits / 8;
}

}  // namespace quern
