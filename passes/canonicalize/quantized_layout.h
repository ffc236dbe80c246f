// How other programs lay out quantized weights, and the same numbers as QuantizedTensor [N, K].
#pragma once

#include <optional>
#include <vector>

#include "ir/quantized_tensor.h"

namespace quern::passes {

// com.microsoft.MatMulNBits: codes U8 [N, blocks, block_size * bits / 8], the first element in the low bits;
// scales [N, blocks] or flat; zero points, if any, U8 packed to whole bytes per row, or floats; without them
// 2^(bits - 1). Bytes are shared where K is whole blocks. bits: 2, 4 or 8.
// Throws Error{Unsupported} for zero points that are no integers, Error{InvalidModel} for sizes that do not
// fit.
QuantizedTensor from_nbits(const Tensor& codes, const Tensor& scales, const Tensor* zero_points, int64_t n,
                           int64_t k, int bits, int64_t block_size);

// The same as numbers, F32 [N, K]: for zero points that are no integers (half-quadratic quantization makes
// such), which have no codes here.
Tensor floats_from_nbits(const Tensor& codes, const Tensor& scales, const Tensor& zero_points, int64_t n,
                         int64_t k, int bits, int64_t block_size);
bool has_fractions(const Tensor& zero_points);

// com.microsoft.MatMulBnb4: 4-bit codes of NF4 (quant_type 1) or FP4 (0), the first element in the high bits,
// and the largest magnitude of each block of the flattened [N, K]. As numbers: F32 [N, K].
Tensor from_bnb4(const Tensor& codes, const Tensor& largest, int64_t n, int64_t k, int64_t block_size,
                 int64_t quant_type);

// ai.onnx DequantizeLinear of a matrix, or of more dimensions: scales of one element, of one per index of
// `axis`, or of one per block of `block_size` (> 0) along `axis`. Nothing for other ranks of scales. Codes
// are integers or 8-bit floats.
std::optional<QuantizedTensor> from_qdq(const Tensor& codes, const Tensor& scales, const Tensor* zero_points,
                                        int64_t axis, int64_t block_size);

// Rows of a quantized matrix, in the order given. Scales that all rows share are shared still. Nothing where
// scales are of groups of rows.
std::optional<QuantizedTensor> rows_of(const QuantizedTensor& matrix, const std::vector<int64_t>& order);

// The transpose of a quantized matrix.
QuantizedTensor transposed(const QuantizedTensor& matrix);
Tensor transposed(const Tensor& matrix);

}  // namespace quern::passes
