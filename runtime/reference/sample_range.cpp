#include "runtime/reference/sample_range.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace quern::runtime::reference {

SampleRange sample_range(const ActivationScheme& scheme, std::span<const float> sample) {
  using Kind = ActivationScheme::Kind;
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kCodes8 = 127, kCodes16 = 32639;
  float least = 0, most = 0;
  bool broken = false;
  for (const float value : sample) {
    least = std::min(least, value);
    most = std::max(most, value);
    broken |= std::isnan(value);
  }
  if (scheme.kind == Kind::Static) {
    return {broken ? kNaN : scheme.scale, static_cast<float>(scheme.lowest),
            static_cast<float>(scheme.highest)};
  }
  if (broken || std::isinf(most - least)) return {.scale = kNaN};
  if (scheme.kind == Kind::TokenAsymmetric) {
    const float scale = (most - least) / 255.0F;
    const float zero = scale > 0 ? std::nearbyint(std::clamp(-least / scale, 0.0F, 255.0F)) : 0.0F;
    return {scale, -zero, 255.0F - zero};
  }
  const float limit = scheme.kind == Kind::None ? kCodes16 : kCodes8;
  return {std::max(most, -least) / limit, -limit, limit};
}

Tensor rounded_samples(const Tensor& x, const ActivationScheme& scheme) {
  std::vector<float> values = x.to_floats();
  const int64_t samples = x.rank() > 0 ? std::max<int64_t>(1, x.dim(0)) : 1;
  const auto size = values.size() / static_cast<size_t>(samples);
  for (int64_t n = 0; n < samples; ++n) {
    const std::span<float> sample(values.data() + static_cast<size_t>(n) * size, size);
    const SampleRange range = sample_range(scheme, sample);
    if (range.scale == 0) continue;
    for (float& value : sample) {
      value =
          std::isnan(range.scale)
              ? range.scale
              : std::clamp(std::nearbyint(value / range.scale), range.lowest, range.highest) * range.scale;
    }
  }
  return Tensor::from<float>(x.shape(), values);
}

}  // namespace quern::runtime::reference
