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
// Codes of 8-bit floats: the nearest of the format to w / scale, where scale is the least power of two that
// brings the largest |w| into the format (a finer one would gain nothing: a float's error is relative).
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

// What the scale of a segment (the weights that share it) is chosen by.
enum class ScaleMethod {
  Range,         // the largest and least value, as above
  LeastSquares,  // the least weighted squared error: ranges from 0.4 to 1.1 of the full one, each improved by
                 // the scale that fits its codes best, sum(m w q) / sum(m q^2), m the importance
  HalfQuadratic  // HQQ (Badri & Shaji 2023): alternately shrinks the error by the proximal operator of
                 // |e|^0.7 and fits the scale to what is left; robust against outliers, needs no data
};

// How outliers are cut off before the range is taken.
enum class ClipKind {
  None,
  Percentile,  // of |w| (symmetric), or half of the rest cut off on either side (asymmetric)
  MeanSquare,  // the share of the range, 1 down to 0.4, with the least (weighted) squared error
  Divergence,  // the cut with the least KL divergence of the histogram of codes from that of values, as
               // TensorRT's entropy calibration of activations does
};
struct ClipRule {
  ClipKind kind = ClipKind::None;
  double percentile = 99.9;
  bool operator==(const ClipRule&) const = default;
};
// "none", "percentile:99.9", "mse", "kl", and the inverse. Throws Error{InvalidArgument}.
std::string to_string(const ClipRule& rule);
ClipRule parse_clip_rule(const std::string& text);
std::string to_string(ScaleMethod method);  // "rtn", "lsq", "hqq"

struct QuantizeOptions {
  // I8, U8, I4, U4 (of 4, 3 or 2 bits), F8E4M3, F8E5M2; Tensor, Channel on axis 0, or Group on axis 1
  QuantScheme scheme;
  DType scale_dtype = DType::F32;  // or F16
  SymmetricRange range = SymmetricRange::Best;
  ScaleMethod method = ScaleMethod::Range;
  ClipRule clip = {};
  // [K], borrowed, or empty: how much an error in each input's column weighs, such as the mean square of the
  // input over calibration data.
  std::span<const float> importance = {};
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
