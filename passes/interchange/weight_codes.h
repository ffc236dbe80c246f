// Codes and scales of a quantized matrix [N, K] laid out as other runtimes take them.
#pragma once

#include <optional>

#include "ir/quantized_tensor.h"

namespace quern::passes {

// Codes as they would be without a sign, c + 2^(bits - 1), and what stands for 0 among them.
struct UnsignedCodes {
  explicit UnsignedCodes(const QuantizedTensor& tensor);
  int64_t code(int64_t i) const { return tensor.codes.int_at(i) + offset; }
  // Of scale `i`.
  int64_t point(int64_t i) const {
    return tensor.zero_points.defined() ? tensor.zero_points.int_at(i) + offset : usual;
  }

  const QuantizedTensor& tensor;
  int bits = 0;        // that hold them: 8, 4 or 2
  int64_t offset = 0;  // what a signed code gains
  int64_t usual = 0;   // the zero point of a symmetric scheme
};

// com.microsoft MatMulNBits and GatherBlockQuantized: blocks of `block` inputs, a power of two from 16 on.
// One scale for several blocks is repeated.
struct BlockCodes {
  int bits = 0;
  int64_t block = 0;
  Tensor codes;   // U8 [N, ceil(K / block), block * bits / 8], the first code in the low bits
  Tensor scales;  // F32 [N, blocks]
  Tensor points;  // U8 [N, ceil(blocks * bits / 8)]; undefined where all are 2^(bits - 1)
};
// Nothing where the codes are no integers or scales are not those of rows, or of groups of a row.
std::optional<BlockCodes> to_blocks(const QuantizedTensor& tensor);

// 8-bit unsigned codes [K, N] with one scale and zero point for all, [], or one for each column, [N]; for
// MatMulInteger. Nothing where the codes are no integers or scales are of groups.
struct ColumnCodes {
  Tensor codes;   // U8 [K, N]
  Tensor scales;  // F32
  Tensor points;  // U8
};
std::optional<ColumnCodes> to_columns(const QuantizedTensor& tensor);

// Zero points for DequantizeLinear, of the shape of the scales; undefined where they are its default, 0.
Tensor explicit_points(const QuantizedTensor& tensor);

// The same numbers with integer codes of less than a byte each in a byte of its own.
QuantizedTensor in_bytes(const QuantizedTensor& tensor);

}  // namespace quern::passes
