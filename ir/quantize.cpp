#include "ir/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <vector>

#include "ir/float_types.h"
#include "ir/parallel_for.h"
#include "ir/segment_quantizer.h"
#include "ir/vectors.h"

namespace quern {
namespace {

using Granularity = QuantScheme::Granularity;
using namespace vectors;

[[noreturn]] void throw_not_finite(std::span<const float> values, int64_t first) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    throw_error(ErrorCode::BadData, "element ", first + static_cast<int64_t>(i), " is ", values[i],
                "; weights to quantize must be finite");
  }
  throw_error(ErrorCode::Internal, "a value that is not finite has vanished");
}

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
    stored_bits_ = bit_width(scheme.code);
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
        put_codes(result_.zero_points.mutable_bytes(), stored_bits_, static_cast<int64_t>(i), {&code, 1});
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
      put_codes(code_bytes_, stored_bits_, start, {codes.data(), static_cast<size_t>(count)});
    }
    return error;
  }

  Affine choose(std::span<const float> part, const ValueRange& range, int64_t row, int64_t group) const {
    try {
      const std::span<const float> importance = options_.importance;
      return segment_.choose(part, range,
                             importance.empty()
                                 ? importance
                                 : importance.subspan(static_cast<size_t>(group * group_), part.size()));
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
  int stored_bits_ = 8;
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
  const bool bytes = code == DType::I8 || code == DType::U8;
  const bool nibbles = code == DType::I4 || code == DType::U4;
  const bool floats = code == DType::F8E4M3 || code == DType::F8E5M2;
  const int bits = scheme.code_bits();
  const bool known =
      (bytes && bits == 8) || (nibbles && bits >= 2 && bits <= 4) || (floats && scheme.bits == 0);
  if (!known) {
    throw_error(ErrorCode::Unsupported, "rounding to ", to_string(code), " codes of ", bits,
                " bits; int8, uint8, int4 and uint4, those of 3 and 2 bits, f8e4m3 and f8e5m2 are known");
  }
  if (floats && !scheme.symmetric) {
    throw_error(ErrorCode::InvalidArgument, "8-bit floats have no zero points; ask for symmetric");
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
  const bool searches = options.method != ScaleMethod::Range || options.clip.kind != ClipKind::None;
  if (searches && scheme.granularity == Granularity::Tensor) {
    throw_error(ErrorCode::Unsupported,
                "one scale for a whole tensor is taken from its range alone; clipping and least squares need "
                "scales per channel or group");
  }
  if (options.clip.kind == ClipKind::Percentile &&
      !(options.clip.percentile > 50 && options.clip.percentile <= 100)) {
    throw_error(ErrorCode::InvalidArgument,
                "the percentile of clipping must lie above 50 and up to 100, not ", options.clip.percentile);
  }
}

QuantizedTensor quantize_rows(std::span<const float> values, int64_t cols, const QuantizeOptions& options,
                              const ValueRange& tensor_range, QuantizeError* error, int64_t first_row) {
  check_quantizable(options);
  if (!options.importance.empty() && static_cast<int64_t>(options.importance.size()) != cols) {
    throw_error(ErrorCode::InvalidArgument, "importance of ", options.importance.size(),
                " inputs for a weight that has ", cols);
  }
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
