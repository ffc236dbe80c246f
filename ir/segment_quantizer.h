// Quantizes one segment: the weights that share a scale, or a row's part of them. What ir/quantize.h and
// methods that look at errors of whole layers have in common.
#pragma once

#include <cstdint>
#include <span>

#include "ir/quantize.h"

namespace quern {

// real = (code - zero_point) * scale
struct Affine {
  float scale = 0;
  int zero_point = 0;
};

// Thread-safe; borrows the options.
class SegmentQuantizer {
 public:
  explicit SegmentQuantizer(const QuantizeOptions& options);

  // The scale for `values`, whose extremes are `range`, by the options' method, clipping and symmetric range.
  // `importance` is that of these values, or empty. Without values the range alone decides. Throws
  // Error{BadData} where a scale overflows its dtype.
  Affine choose(std::span<const float> values, const ValueRange& range,
                std::span<const float> importance = {}) const;

  // Codes as they are stored, one an element; `codes` has room for three more. Returns the error.
  QuantizeError encode(std::span<const float> values, const Affine& affine, int32_t* codes) const;

  // One value: the code minus the zero point, as a float, so that value is nearly steps * scale. Not for
  // 8-bit floats.
  float steps(float value, const Affine& affine) const;
  // The limits of steps().
  float least_steps(const Affine& affine) const { return static_cast<float>(limits_of(affine).min); }
  float most_steps(const Affine& affine) const { return static_cast<float>(limits_of(affine).max); }

  // Rounded as it is stored. Throws Error{BadData} where it overflows.
  float rounded_scale(float scale) const;

 private:
  struct CodeRange {
    int min;
    int max;
  };
  struct Rounding;

  CodeRange limits_of(const Affine& affine) const;
  Affine from_range(std::span<const float> values, const ValueRange& range,
                    std::span<const float> importance) const;
  Affine asymmetric(const ValueRange& range) const;
  Affine power_of_two(const ValueRange& range) const;
  ValueRange clipped(std::span<const float> values, const ValueRange& range) const;
  Affine search(std::span<const float> values, const ValueRange& range,
                std::span<const float> importance) const;
  // The scale that fits the codes of `affine` best.
  Affine refit(std::span<const float> values, const Affine& affine, std::span<const float> importance) const;
  Affine half_quadratic(std::span<const float> values, Affine affine) const;
  float noise(std::span<const float> values, const Affine& affine, std::span<const float> importance) const;
  QuantizeError encode_floats(std::span<const float> values, const Affine& affine, int32_t* codes) const;

  const QuantizeOptions& options_;
  bool floats_ = false;
  int middle_ = 0;
  int offset_ = 0;  // what asymmetric signed codes are moved by
  CodeRange range_{};
};

// The cut of TensorRT's entropy calibration ("8-bit inference with TensorRT", Migacz 2017): the upper end of
// a histogram of magnitudes, bins of equal width from 0, such that `levels` steps up to it give the
// distribution with the least KL divergence. Returns the number of bins to keep, from `levels` to all of
// them; all where there are no more bins than levels, or nothing in them.
int64_t least_divergence_cut(std::span<const double> histogram, int64_t levels);

// The value that a share of `values` does not exceed, by rank without interpolation; reorders them.
float value_at_share(std::span<float> values, double share);

}  // namespace quern
