#include "ir/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <vector>

#include "ir/float_types.h"
#include "ir/parallel_for.h"

namespace quern {
namespace {

using Granularity = QuantScheme::Granularity;

// Four elements at a time, with the language extension of GCC and Clang: compilers do not reorder
// floating-point sums and extremes by themselves.
using Floats = float __attribute__((vector_size(16)));
using Ints = int32_t __attribute__((vector_size(16)));
constexpr size_t kWidth = 4;

Floats load(const float* from) {
  Floats value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// The last, incomplete vector of a segment, filled up with zeros: they have no error and do not widen a
// range.
Floats load_tail(const float* from, size_t count) {
  Floats value{};
  std::memcpy(&value, from, count * sizeof(float));
  return value;
}

Floats splat(float value) {
  return Floats{value, value, value, value};
}

// body(vector) for all of `values`.
template <class Body>
void for_vectors(std::span<const float> values, const Body& body) {
  size_t i = 0;
  for (; i + kWidth <= values.size(); i += kWidth) body(i, load(values.data() + i));
  if (i < values.size()) body(i, load_tail(values.data() + i, values.size() - i));
}

float sum(const Floats& x) {
  return (x[0] + x[1]) + (x[2] + x[3]);
}
float largest(const Floats& x) {
  return std::max(std::max(x[0], x[1]), std::max(x[2], x[3]));
}

[[noreturn]] void throw_not_finite(std::span<const float> values, int64_t first) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    throw_error(ErrorCode::BadData, "element ", first + static_cast<int64_t>(i), " is ", values[i],
                "; weights to quantize must be finite");
  }
  throw_error(ErrorCode::Internal, "a value that is not finite has vanished");
}

struct Affine {
  float scale = 0;
  int zero_point = 0;  // subtracted from codes
};

struct CodeRange {
  int min;
  int max;
};

// A segment is what shares one scale (or a row's part of it).
class SegmentQuantizer {
 public:
  explicit SegmentQuantizer(const QuantizeOptions& options)
      : options_(options), bits_(bit_width(options.scheme.code)) {
    const int half = 1 << (bits_ - 1);
    const bool is_signed = is_signed_integer(options.scheme.code);
    // Symmetric unsigned codes have the zero point in the middle.
    middle_ = is_signed ? 0 : half;
    range_ = options.scheme.symmetric ? CodeRange{-half, half - 1} : CodeRange{0, 2 * half - 1};
    if (!options.scheme.symmetric && is_signed) offset_ = -half;
  }

  // Picks the scale for values of that range; `values` decide between the symmetric variants.
  Affine choose(std::span<const float> values, const ValueRange& range) const {
    if (!options_.scheme.symmetric) return asymmetric(range);
    const Affine restricted{rounded(std::max(range.max, -range.min) / static_cast<float>(range_.max)),
                            middle_};
    if (options_.range == SymmetricRange::Restricted) return restricted;
    const float largest = range.max > -range.min ? range.max : range.min;
    const Affine full{rounded(largest / static_cast<float>(range_.min)), middle_};
    if (options_.range == SymmetricRange::Full || values.empty()) return full;
    return noise(values, full) < noise(values, restricted) ? full : restricted;
  }

  // Codes as they are stored, one a byte; returns the error. `codes` has room for a whole last vector.
  QuantizeError encode(std::span<const float> values, const Affine& affine, int32_t* codes) const {
    const Rounding rounding(*this, affine);
    const Ints zero = Ints{} + affine.zero_point;
    ErrorSums sums;
    for_vectors(values, [&](size_t i, const Floats& value) {
      const Floats rounded = rounding(value);
      const Ints code = __builtin_convertvector(rounded, Ints) + zero;
      std::memcpy(codes + i, &code, sizeof(code));
      sums.add(value, value - rounded * splat(affine.scale));
    });
    return sums.total();
  }

  int bits() const { return bits_; }

 private:
  // Value to code minus zero point, as a float.
  struct Rounding {
    Floats divisor;
    Floats low;
    Floats high;

    Rounding(const SegmentQuantizer& owner, const Affine& affine) {
      const CodeRange limits = owner.limits_of(affine);
      low = splat(static_cast<float>(limits.min));
      high = splat(static_cast<float>(limits.max));
      // 0 / 0 for a range of zeros would be NaN.
      divisor = splat(affine.scale == 0 ? 1.0F : affine.scale);
    }

    // Adding and subtracting 1.5 * 2^23 rounds |x| < 2^22 to the nearest integer, halves to even, in the
    // default rounding mode.
    Floats operator()(const Floats& value) const {
      const Floats round = splat(12582912.0F);
      Floats x = value / divisor;
      x = x < low ? low : x;
      x = x > high ? high : x;
      return (x + round) - round;
    }
  };

  struct ErrorSums {
    Floats signal{};
    Floats noise{};
    Floats worst{};

    void add(const Floats& value, const Floats& error) {
      const Floats magnitude = error < 0 ? -error : error;
      signal += value * value;
      noise += error * error;
      worst = magnitude > worst ? magnitude : worst;
    }
    QuantizeError total() const {
      return {static_cast<double>(sum(signal)), static_cast<double>(sum(noise)), largest(worst)};
    }
  };

  // The codes minus the zero point.
  CodeRange limits_of(const Affine& affine) const {
    if (options_.scheme.symmetric) return range_;
    return {range_.min + offset_ - affine.zero_point, range_.max + offset_ - affine.zero_point};
  }

  Affine asymmetric(const ValueRange& range) const {
    const float steps = static_cast<float>(range_.max);
    // Halved, so that the difference of two huge values is finite.
    const float scale = rounded((range.max * 0.5F - range.min * 0.5F) / (steps * 0.5F));
    if (scale == 0) return {0, offset_};
    const float zero = std::clamp(std::nearbyint(-range.min / scale), 0.0F, steps);
    return {scale, static_cast<int>(zero) + offset_};
  }

  float rounded(float scale) const {
    if (options_.scale_dtype != DType::F16) return scale;
    const float half = f16_to_f32(f32_to_f16(scale));
    if (std::isinf(half)) {
      throw_error(ErrorCode::BadData, "the scale ", scale, " overflows f16 (65504); use f32 scales");
    }
    return half;
  }

  float noise(std::span<const float> values, const Affine& affine) const {
    const Rounding rounding(*this, affine);
    Floats total{};
    for_vectors(values, [&](size_t, const Floats& value) {
      const Floats error = value - rounding(value) * splat(affine.scale);
      total += error * error;
    });
    return sum(total);
  }

  const QuantizeOptions& options_;
  int bits_;
  int middle_ = 0;
  int offset_ = 0;  // what asymmetric signed codes are moved by
  CodeRange range_{};
};

void put_scale(Tensor& scales, int64_t i, float scale) {
  if (scales.dtype() == DType::F32) {
    reinterpret_cast<float*>(scales.mutable_bytes())[i] = scale;
  } else {
    reinterpret_cast<uint16_t*>(scales.mutable_bytes())[i] = f32_to_f16(scale);
  }
}

// Elements first .. first + codes.size() - 1 of a tensor of 4- or 8-bit codes.
void put_codes(std::byte* __restrict out, int bits, int64_t first, std::span<const int32_t> codes) {
  const int32_t* __restrict in = codes.data();
  const size_t count = codes.size();
  if (bits == 8) {
    for (size_t i = 0; i < count; ++i) out[first + static_cast<int64_t>(i)] = static_cast<std::byte>(in[i]);
    return;
  }
  size_t i = 0;
  const auto put_nibble = [&] {
    const int64_t at = first + static_cast<int64_t>(i);
    const int nibble = in[i] & 0xF;
    out[at / 2] |= static_cast<std::byte>(at % 2 == 0 ? nibble : nibble << 4);
    ++i;
  };
  if (first % 2 != 0 && count != 0) put_nibble();
  const size_t pairs = (count - i) / 2;
  std::byte* __restrict bytes = out + (first + static_cast<int64_t>(i)) / 2;
  for (size_t j = 0; j < pairs; ++j) {
    bytes[j] = static_cast<std::byte>((in[i + 2 * j] & 0xF) | (in[i + 2 * j + 1] << 4));
  }
  i += 2 * pairs;
  if (i < count) put_nibble();
}

Shape scales_shape(const QuantScheme& scheme, int64_t rows, int64_t cols) {
  switch (scheme.granularity) {
    case Granularity::Tensor:
      return {};
    case Granularity::Channel:
      return {rows};
    case Granularity::Group:
      return {rows, (cols + scheme.group_size - 1) / scheme.group_size};
  }
  return {};
}

class RowsQuantizer {
 public:
  RowsQuantizer(std::span<const float> values, int64_t cols, const QuantizeOptions& options,
                int64_t first_row)
      : values_(values), cols_(cols), options_(options), first_row_(first_row), segment_(options) {
    rows_ = cols == 0 ? 0 : static_cast<int64_t>(values.size()) / cols;
    const QuantScheme& scheme = options.scheme;
    group_ = scheme.granularity == Granularity::Group
                 ? std::min(scheme.group_size, std::max<int64_t>(cols, 1))
                 : cols;
    result_.scheme = scheme;
    result_.codes = Tensor::zeros(scheme.code, {rows_, cols_});
    const Shape shape = scales_shape(scheme, rows_, cols_);
    result_.scales = Tensor::zeros(options.scale_dtype, shape);
    if (!scheme.symmetric) result_.zero_points = Tensor::zeros(scheme.code, shape);
    affines_.resize(static_cast<size_t>(result_.scales.size()));
    code_bytes_ = result_.codes.mutable_bytes();
  }

  QuantizedTensor run(const ValueRange& tensor_range, QuantizeError* error) {
    const bool whole = options_.scheme.granularity == Granularity::Tensor;
    if (whole) affines_[0] = segment_.choose({}, tensor_range);
    std::vector<QuantizeError> errors(static_cast<size_t>(rows_));
    // Sixteen rows hold whole bytes of 4-bit codes whatever the width, so threads never share one.
    constexpr int64_t kGrain = 16;
    constexpr int64_t kWorthAThread = 1 << 18;
    parallel_for(
        rows_, {.grain = kGrain, .least = std::max<int64_t>(1, kWorthAThread / std::max<int64_t>(cols_, 1))},
        [&](int64_t first, int64_t count) {
          std::vector<int32_t> codes(static_cast<size_t>(cols_) + kWidth);
          for (int64_t row = first; row < first + count; ++row) {
            errors[static_cast<size_t>(row)] = quantize_row(row, whole, codes);
          }
        });
    for (size_t i = 0; i < affines_.size(); ++i) {
      put_scale(result_.scales, static_cast<int64_t>(i), affines_[i].scale);
      if (result_.zero_points.defined()) {
        const int32_t code = affines_[i].zero_point;
        put_codes(result_.zero_points.mutable_bytes(), segment_.bits(), static_cast<int64_t>(i), {&code, 1});
      }
    }
    // Summed row after row: the same whatever the number of threads.
    if (error != nullptr) {
      for (const QuantizeError& row : errors) error->add(row);
    }
    return std::move(result_);
  }

 private:
  QuantizeError quantize_row(int64_t row, bool whole, std::vector<int32_t>& codes) {
    QuantizeError error;
    const int64_t groups = group_ == 0 ? 0 : (cols_ + group_ - 1) / group_;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t start = row * cols_ + g * group_;
      const int64_t count = std::min(group_, cols_ - g * group_);
      const std::span<const float> part =
          values_.subspan(static_cast<size_t>(start), static_cast<size_t>(count));
      const ValueRange range = range_of(part, first_row_ * cols_ + start);
      Affine& affine = affines_[static_cast<size_t>(whole ? 0 : row * groups + g)];
      if (!whole) affine = choose(part, range, row, g);
      error.add(segment_.encode(part, affine, codes.data()));
      put_codes(code_bytes_, segment_.bits(), start, {codes.data(), static_cast<size_t>(count)});
    }
    return error;
  }

  Affine choose(std::span<const float> part, const ValueRange& range, int64_t row, int64_t group) const {
    try {
      return segment_.choose(part, range);
    } catch (Error& error) {
      throw error.add_context(concat("quantizing row ", first_row_ + row, " from column ", group * group_));
    }
  }

  std::span<const float> values_;
  int64_t cols_;
  const QuantizeOptions& options_;
  int64_t first_row_;
  SegmentQuantizer segment_;
  int64_t rows_ = 0;
  int64_t group_ = 0;
  QuantizedTensor result_;
  std::vector<Affine> affines_;
  std::byte* code_bytes_ = nullptr;
};

}  // namespace

void QuantizeError::add(const QuantizeError& other) {
  signal += other.signal;
  noise += other.noise;
  max_error = std::max(max_error, other.max_error);
}

double QuantizeError::sqnr_db() const {
  if (noise == 0) return std::numeric_limits<double>::infinity();
  return 10.0 * std::log10(signal / noise);
}

void ValueRange::add(const ValueRange& other) {
  min = std::min(min, other.min);
  max = std::max(max, other.max);
}

ValueRange range_of(std::span<const float> values, int64_t first) {
  Floats low{};
  Floats high{};
  Ints bad{};
  for_vectors(values, [&](size_t, const Floats& value) {
    low = value < low ? value : low;
    high = value > high ? value : high;
    // Infinity minus itself and NaN minus itself are NaN, and NaN differs from itself.
    const Floats difference = value - value;
    bad |= difference != difference;
  });
  if ((bad[0] | bad[1] | bad[2] | bad[3]) != 0) throw_not_finite(values, first);
  return {-largest(-low), largest(high)};
}

void check_quantizable(const QuantizeOptions& options) {
  const QuantScheme& scheme = options.scheme;
  const DType code = scheme.code;
  if (code != DType::I8 && code != DType::U8 && code != DType::I4 && code != DType::U4) {
    throw_error(ErrorCode::Unsupported, "rounding to ", to_string(code),
                " codes; int8, uint8, int4 and uint4 are known");
  }
  if (options.scale_dtype != DType::F32 && options.scale_dtype != DType::F16) {
    throw_error(ErrorCode::Unsupported, "scales of dtype ", to_string(options.scale_dtype),
                "; f32 and f16 are known");
  }
  const bool channel_elsewhere = scheme.granularity == Granularity::Channel && scheme.axis != 0;
  const bool group_elsewhere = scheme.granularity == Granularity::Group && scheme.axis != 1;
  if (channel_elsewhere || group_elsewhere) {
    throw_error(ErrorCode::Unsupported,
                "a matrix [N, K] is quantized with channels on axis 0 or groups on axis 1, not ",
                to_string(scheme), " on axis ", scheme.axis);
  }
  if (scheme.granularity == Granularity::Group && scheme.group_size < 1) {
    throw_error(ErrorCode::InvalidArgument, "the group size must be 1 or more, not ", scheme.group_size);
  }
}

QuantizedTensor quantize_rows(std::span<const float> values, int64_t cols, const QuantizeOptions& options,
                              const ValueRange& tensor_range, QuantizeError* error, int64_t first_row) {
  check_quantizable(options);
  return RowsQuantizer(values, cols, options, first_row).run(tensor_range, error);
}

QuantizedTensor quantize(const Tensor& weight, const QuantizeOptions& options, QuantizeError* error) {
  if (weight.rank() != 2 || !is_floating(weight.dtype())) {
    throw_error(ErrorCode::InvalidArgument, "weights to quantize are floating-point matrices, not ",
                to_string(weight.dtype()), " ", to_string(weight.shape()));
  }
  const Tensor floats = weight.dtype() == DType::F32 ? weight : weight.cast(DType::F32);
  const std::span<const float> values = floats.data<float>();
  ValueRange range;
  if (options.scheme.granularity == Granularity::Tensor) range = range_of(values);
  return quantize_rows(values, weight.dim(1), options, range, error);
}

}  // namespace quern
