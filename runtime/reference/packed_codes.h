// Codes of a few bits packed into bytes, as com.microsoft's quantized operators have them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/tensor.h"
#include "runtime/kernel_context.h"

namespace quern::runtime::reference {

// Code `i` of a row of bytes, the first in the low bits.
inline int64_t packed_code(const uint8_t* row, int64_t i, int64_t bits) {
  if (bits == 8) return row[i];
  const int64_t per_byte = 8 / bits;
  return (row[i / per_byte] >> (i % per_byte * bits)) & ((1 << bits) - 1);
}

// Rows of blocks: what MatMulNBits, QMoE and GatherBlockQuantized multiply with.
struct BlockCodes {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t bits = 4;
  int64_t block = 0;  // columns that share a scale
  const uint8_t* codes = nullptr;
  int64_t code_stride = 0;  // bytes from row to row
  // Of each column, its group; empty: groups are blocks of columns in order.
  std::vector<int64_t> groups = {};
  int64_t blocks() const { return columns / block + (columns % block != 0 ? 1 : 0); }
};

// [rows, columns] in double: (code - zero) * scale. scales: [rows, blocks] flat. zero_points: u8 packed, each
// row padded to whole bytes, or of any other dtype one number each; not given: 2^(bits - 1).
std::vector<double> dequantize_blocks(const KernelContext& context, const BlockCodes& codes,
                                      const Tensor& scales, const Tensor* zero_points);

}  // namespace quern::runtime::reference
