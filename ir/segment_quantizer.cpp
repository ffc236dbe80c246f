#include "ir/segment_quantizer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ir/float_types.h"
#include "ir/vectors.h"

namespace quern {

using namespace vectors;

namespace {

// Candidates of a search, as shares of the full range.
constexpr float kWidest = 1.1F;
constexpr float kNarrowest = 0.4F;
constexpr float kShareStep = 0.05F;

float largest_finite(DType dtype) {
  return dtype == DType::F8E4M3 ? 448.0F : 57344.0F;
}

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

}  // namespace

// Value to code minus zero point, as a float.
struct SegmentQuantizer::Rounding {
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

SegmentQuantizer::SegmentQuantizer(const QuantizeOptions& options)
    : options_(options), floats_(!is_integer(options.scheme.code)) {
  if (floats_) return;
  const int half = 1 << (options.scheme.code_bits() - 1);
  const bool is_signed = is_signed_integer(options.scheme.code);
  // Symmetric unsigned codes have the zero point in the middle.
  middle_ = is_signed ? 0 : half;
  range_ = options.scheme.symmetric ? CodeRange{-half, half - 1} : CodeRange{0, 2 * half - 1};
  if (!options.scheme.symmetric && is_signed) offset_ = -half;
}

Affine SegmentQuantizer::choose(std::span<const float> values, const ValueRange& range,
                                std::span<const float> importance) const {
  if (floats_) return power_of_two(clipped(values, range));
  const ValueRange base = clipped(values, range);
  const bool searches =
      options_.method == ScaleMethod::LeastSquares || options_.clip.kind == ClipKind::MeanSquare;
  if (values.empty() || (base.min == 0 && base.max == 0)) return from_range(values, base, importance);
  if (searches) return search(values, base, importance);
  const Affine affine = from_range(values, base, importance);
  return options_.method == ScaleMethod::HalfQuadratic ? half_quadratic(values, affine) : affine;
}

Affine SegmentQuantizer::from_range(std::span<const float> values, const ValueRange& range,
                                    std::span<const float> importance) const {
  if (!options_.scheme.symmetric) return asymmetric(range);
  const Affine restricted{
      rounded_scale(std::max(range.max, -range.min) / static_cast<float>(std::max(1, range_.max))), middle_};
  if (options_.range == SymmetricRange::Restricted) return restricted;
  const float largest = range.max > -range.min ? range.max : range.min;
  const Affine full{rounded_scale(largest / static_cast<float>(range_.min)), middle_};
  if (options_.range == SymmetricRange::Full || values.empty()) return full;
  return noise(values, full, importance) < noise(values, restricted, importance) ? full : restricted;
}

Affine SegmentQuantizer::asymmetric(const ValueRange& range) const {
  const auto steps = static_cast<float>(range_.max);
  // Halved, so that the difference of two huge values is finite.
  const float scale = rounded_scale((range.max * 0.5F - range.min * 0.5F) / (steps * 0.5F));
  if (scale == 0) return {0, offset_};
  const float zero = std::clamp(std::nearbyint(-range.min / scale), 0.0F, steps);
  return {scale, static_cast<int>(zero) + offset_};
}

Affine SegmentQuantizer::power_of_two(const ValueRange& range) const {
  const float largest = std::max(range.max, -range.min);
  if (largest == 0) return {0, 0};
  int exponent = 0;
  const float share = std::frexp(largest / largest_finite(options_.scheme.code), &exponent);
  // frexp's share lies in [0.5, 1): 0.5 alone is a power of two already.
  return {rounded_scale(std::ldexp(1.0F, share == 0.5F ? exponent - 1 : exponent)), 0};
}

ValueRange SegmentQuantizer::clipped(std::span<const float> values, const ValueRange& range) const {
  const ClipKind kind = options_.clip.kind;
  if (values.empty() || (kind != ClipKind::Percentile && kind != ClipKind::Divergence)) return range;
  std::vector<float> scratch(values.begin(), values.end());
  const double share = options_.clip.percentile / 100;
  if (kind == ClipKind::Percentile && !options_.scheme.symmetric) {
    const double tail = (1 - share) / 2;
    const float high = value_at_share(scratch, 1 - tail);
    const float low = value_at_share(scratch, tail);
    return {std::min(low, 0.0F), std::max(high, 0.0F)};
  }
  for (float& value : scratch) value = std::fabs(value);
  float limit = std::max(range.max, -range.min);
  if (kind == ClipKind::Percentile) {
    limit = value_at_share(scratch, share);
  } else if (limit > 0) {
    constexpr int64_t kBins = 1024;
    std::vector<double> histogram(kBins);
    for (const float value : scratch) {
      const auto bin = static_cast<int64_t>(value / limit * static_cast<float>(kBins));
      histogram[static_cast<size_t>(std::min(bin, kBins - 1))] += 1;
    }
    const int64_t levels = floats_ ? 128 : int64_t{1} << (options_.scheme.code_bits() - 1);
    limit *= static_cast<float>(least_divergence_cut(histogram, levels)) / static_cast<float>(kBins);
  }
  return {std::max(range.min, -limit), std::min(range.max, limit)};
}

Affine SegmentQuantizer::search(std::span<const float> values, const ValueRange& range,
                                std::span<const float> importance) const {
  const bool fits = options_.method == ScaleMethod::LeastSquares;
  Affine best = from_range(values, range, importance);
  float least = noise(values, best, importance);
  const auto consider = [&](const Affine& affine) {
    const float error = noise(values, affine, importance);
    if (error >= least) return false;
    least = error;
    best = affine;
    return true;
  };
  const int tries = static_cast<int>(std::lround((kWidest - kNarrowest) / kShareStep));
  for (int i = fits ? 0 : 2; i <= tries; ++i) {
    const float share = kWidest - kShareStep * static_cast<float>(i);
    Affine affine = from_range(values, {range.min * share, range.max * share}, importance);
    consider(affine);
    if (!fits) continue;
    constexpr int kRefits = 2;
    for (int r = 0; r < kRefits; ++r) {
      affine = refit(values, affine, importance);
      if (!consider(affine)) break;
    }
  }
  if (!fits || options_.scheme.symmetric) return best;
  // The zero point is a whole number: its neighbours with scales of their own.
  const Affine middle = best;
  for (const int move : {-1, 1}) {
    Affine affine = middle;
    affine.zero_point = std::clamp(affine.zero_point + move, offset_, offset_ + range_.max);
    consider(affine);
    consider(refit(values, affine, importance));
  }
  return best;
}

Affine SegmentQuantizer::refit(std::span<const float> values, const Affine& affine,
                               std::span<const float> importance) const {
  if (affine.scale == 0) return affine;
  const Rounding rounding(*this, affine);
  Floats product{};
  Floats square{};
  for_vectors(values, [&](size_t i, const Floats& value) {
    const Floats steps = rounding(value);
    const Floats weighted = importance.empty() ? steps : steps * load_at(importance, i);
    product += weighted * value;
    square += weighted * steps;
  });
  const float below = sum(square);
  if (!(below > 0)) return affine;
  return {rounded_scale(sum(product) / below), affine.zero_point};
}

// The constants are those of the authors' implementation.
Affine SegmentQuantizer::half_quadratic(std::span<const float> values, Affine affine) const {
  constexpr int kIterations = 20;
  constexpr float kNorm = 0.7F;
  constexpr float kGrowth = 1.01F;
  float beta = 10;
  // Errors are measured in units of the largest weight, so that beta means the same for all of them.
  const float unit = std::fabs(affine.scale) * static_cast<float>(range_.max);
  if (unit == 0) return affine;
  Affine best = affine;
  double least = INFINITY;
  for (int round = 0; round < kIterations && affine.scale != 0; ++round, beta *= kGrowth) {
    double total = 0;
    double product = 0;
    double square = 0;
    for (const float value : values) {
      const float q = steps(value, affine);
      const float error = (value - q * affine.scale) / unit;
      const float magnitude = std::fabs(error);
      total += std::pow(magnitude, kNorm);
      const float shrunk =
          magnitude == 0 ? 0 : std::max(0.0F, magnitude - std::pow(magnitude, kNorm - 1) / beta);
      product += static_cast<double>(q) * static_cast<double>(value - std::copysign(shrunk, error) * unit);
      square += static_cast<double>(q) * static_cast<double>(q);
    }
    if (total >= least) break;
    least = total;
    best = affine;
    if (square == 0) break;
    affine.scale = rounded_scale(static_cast<float>(product / square));
  }
  return best;
}

float SegmentQuantizer::noise(std::span<const float> values, const Affine& affine,
                              std::span<const float> importance) const {
  const Rounding rounding(*this, affine);
  Floats total{};
  for_vectors(values, [&](size_t i, const Floats& value) {
    const Floats error = value - rounding(value) * splat(affine.scale);
    total += importance.empty() ? error * error : error * error * load_at(importance, i);
  });
  return sum(total);
}

QuantizeError SegmentQuantizer::encode(std::span<const float> values, const Affine& affine,
                                       int32_t* codes) const {
  if (floats_) return encode_floats(values, affine, codes);
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

QuantizeError SegmentQuantizer::encode_floats(std::span<const float> values, const Affine& affine,
                                              int32_t* codes) const {
  QuantizeError error;
  const DType code = options_.scheme.code;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint8_t bits = f32_to_narrow(affine.scale == 0 ? 0.0F : values[i] / affine.scale, code);
    codes[i] = bits;
    const double difference = static_cast<double>(values[i] - narrow_to_f32(bits, code) * affine.scale);
    error.add({static_cast<double>(values[i]) * static_cast<double>(values[i]), difference * difference,
               static_cast<float>(std::fabs(difference))});
  }
  return error;
}

float SegmentQuantizer::steps(float value, const Affine& affine) const {
  const CodeRange limits = limits_of(affine);
  const float x = value / (affine.scale == 0 ? 1.0F : affine.scale);
  return std::nearbyint(std::clamp(x, static_cast<float>(limits.min), static_cast<float>(limits.max)));
}

SegmentQuantizer::CodeRange SegmentQuantizer::limits_of(const Affine& affine) const {
  if (options_.scheme.symmetric) return range_;
  return {range_.min + offset_ - affine.zero_point, range_.max + offset_ - affine.zero_point};
}

float SegmentQuantizer::rounded_scale(float scale) const {
  if (options_.scale_dtype != DType::F16) return scale;
  const float half = f16_to_f32(f32_to_f16(scale));
  if (std::isinf(half)) {
    throw_error(ErrorCode::BadData, "the scale ", scale, " overflows f16 (65504); use f32 scales");
  }
  return half;
}

namespace {

// KL divergence of the first `cut` bins spread over `levels` steps from the histogram whose rest is in the
// last of them. Infinite where a step has nothing that the histogram has.
double divergence_of(std::span<const double> histogram, int64_t cut, int64_t levels, double total) {
  double outliers = 0;
  for (size_t i = static_cast<size_t>(cut); i < histogram.size(); ++i) outliers += histogram[i];
  const double inside = total - outliers;
  if (inside <= 0) return INFINITY;
  double divergence = 0;
  for (int64_t level = 0; level < levels; ++level) {
    const int64_t begin = level * cut / levels;
    const int64_t end = (level + 1) * cut / levels;
    double sum = 0;
    int64_t filled = 0;
    for (int64_t i = begin; i < end; ++i) {
      sum += histogram[static_cast<size_t>(i)];
      filled += histogram[static_cast<size_t>(i)] > 0 ? 1 : 0;
    }
    for (int64_t i = begin; i < end; ++i) {
      double p = histogram[static_cast<size_t>(i)];
      const bool was_filled = p > 0;
      if (i == cut - 1) p += outliers;
      if (p == 0) continue;
      if (!was_filled) return INFINITY;
      const double q = sum / static_cast<double>(filled) / inside;
      divergence += p / total * std::log(p / total / q);
    }
  }
  return divergence;
}

}  // namespace

int64_t least_divergence_cut(std::span<const double> histogram, int64_t levels) {
  const auto bins = static_cast<int64_t>(histogram.size());
  double total = 0;
  for (const double count : histogram) total += count;
  if (bins <= levels || total <= 0) return bins;
  int64_t best = bins;
  double least = INFINITY;
  // From the widest, so that of equals the one that cuts off least is taken.
  const int64_t step = std::max<int64_t>(1, bins / 128);
  for (int64_t cut = bins; cut >= levels; cut -= step) {
    const double divergence = divergence_of(histogram, cut, levels, total);
    if (divergence < least) {
      least = divergence;
      best = cut;
    }
  }
  return best;
}

float value_at_share(std::span<float> values, double share) {
  if (values.empty()) return 0;
  // A share such as 0.999 of 1000 must be rank 999, whatever the last bit of the product.
  constexpr double kRounding = 1e-9;
  const double count = share * static_cast<double>(values.size());
  const auto rank = static_cast<ptrdiff_t>(std::ceil(count - kRounding)) - 1;
  const auto at = values.begin() + std::clamp<ptrdiff_t>(rank, 0, static_cast<ptrdiff_t>(values.size()) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

std::string to_string(const ClipRule& rule) {
  switch (rule.kind) {
    case ClipKind::None:
      return "none";
    case ClipKind::Percentile:
      return concat("percentile:", rule.percentile);
    case ClipKind::MeanSquare:
      return "mse";
    case ClipKind::Divergence:
      return "kl";
  }
  return "?";
}

ClipRule parse_clip_rule(const std::string& text) {
  if (text == "none") return {};
  if (text == "mse") return {.kind = ClipKind::MeanSquare};
  if (text == "kl") return {.kind = ClipKind::Divergence};
  const std::string prefix = "percentile:";
  if (text == "percentile") return {.kind = ClipKind::Percentile};
  if (text.starts_with(prefix)) {
    char* end = nullptr;
    const std::string number = text.substr(prefix.size());
    const double percentile = std::strtod(number.c_str(), &end);
    if (!number.empty() && *end == '\0' && percentile > 50 && percentile <= 100) {
      return {.kind = ClipKind::Percentile, .percentile = percentile};
    }
  }
  throw_error(ErrorCode::InvalidArgument, "clip '", text,
              "': expected none, mse, kl, or percentile:P with P above 50 and up to 100, such as "
              "percentile:99.9");
}

std::string to_string(ScaleMethod method) {
  switch (method) {
    case ScaleMethod::Range:
      return "rtn";
    case ScaleMethod::LeastSquares:
      return "lsq";
    case ScaleMethod::HalfQuadratic:
      return "hqq";
  }
  return "?";
}

}  // namespace quern
