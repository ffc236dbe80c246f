// Round-to-nearest quantization of weight matrices.
//
//   symmetric, restricted   scale = max|w| / (2^(b-1) - 1)                 codes -(2^(b-1)-1) .. 2^(b-1)-1
//   symmetric, full         scale = m / -2^(b-1), m the w of largest |w|    codes -2^(b-1) .. 2^(b-1)-1; the
//   scale
//                           has the sign opposite to m's                   (as llama.cpp's Q4_0 and ORT's
//                           MatMulNBits)
//   asymmetric              scale = (max(w, 0) - min(w, 0)) / (2^b - 1),   codes 0 .. 2^b - 1
//                           zero point = round(-min(w, 0) / scale)
//   code = clamp(round(w / scale) + zero point), halves to even (QuantizeLinear of ai.onnx)
//
// Scales are rounded to their dtype first, so that codes are the best ones for the scale that is stored. A
// range of zeros alone has scale 0 and codes that stand for 0.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ir/quantized_tensor.h"

namespace quern {

enum class SymmetricRange {
  Restricted,
  Full,
  Best,  // for each scale the one of the two with the smaller squared error; Restricted if equal
};

struct QuantizeOptions {
  QuantScheme scheme;              // I8, U8, I4 or U4; Tensor, Channel on axis 0, or Group on axis 1
  DType scale_dtype = DType::F32;  // or F16
  SymmetricRange range = SymmetricRange::Best;
};

// Sums over elements; add up those of parts.
struct QuantizeError {
  double signal = 0;  // of w^2
  double noise = 0;   // of (w - dequantized w)^2
  float max_error = 0;

  void add(const QuantizeError& other);
  // Signal to quantization noise, 10*log10(signal / noise) in dB; infinite without noise.
  double sqnr_db() const;
};

// The extremes of values; both include 0.
struct ValueRange {
  float min = 0;
  float max = 0;
  void add(const ValueRange& other);
};

// Throws Error{BadData} saying where, if a value is NaN or infinite. `first` is the index of values[0] in its
// tensor, for the message.
ValueRange range_of(std::span<const float> values, int64_t first = 0);

// Throws Error{Unsupported} for schemes that are not listed above, Error{InvalidArgument} for a bad group
// size.
void check_quantizable(const QuantizeOptions& options);

// `values` are whole rows of a matrix of `cols` columns, row-major. Rows count from `first_row` in messages.
// For granularity Tensor, `tensor_range` is that of the whole matrix. The result is a tensor of these rows
// alone. Uses all processors for large inputs; the result does not depend on how many there are. Throws
// Error{BadData} on NaN or infinity, and where a scale overflows F16 (use F32 scales), naming row and column.
QuantizedTensor quantize_rows(std::span<const float> values, int64_t cols, const QuantizeOptions& options,
                              const ValueRange& tensor_range = {}, QuantizeError* error = nullptr,
                              int64_t first_row = 0);

// The whole of a matrix [N, K] of dtype F32, F16 or BF16.
QuantizedTensor quantize(const Tensor& weight, const QuantizeOptions& options,
                         QuantizeError* error = nullptr);

}  // namespace quern
