#include "passes/canonicalize/rotary_math.h"

#include <cmath>
#include <numbers>

#include "ir/error.h"

namespace quern::passes {
namespace {

double wrapped(double angle) {
  return std::remainder(angle, 2 * std::numbers::pi);
}

}  // namespace

double precision_of(DType dtype) {
  return dtype == DType::F16 ? 1e-3 : dtype == DType::BF16 ? 8e-3 : 2.5e-7;
}

std::vector<double> unwrap(const Rotations& doublings, size_t pairs) {
  std::vector<double> frequency(pairs);
  for (size_t pair = 0; pair < pairs; ++pair) {
    double estimate = 0;
    for (size_t k = 0; k < doublings.size(); ++k) {
      const CosSin& r = doublings[k][pair];
      const double position = std::ldexp(1.0, static_cast<int>(k));
      const double predicted = k == 0 ? 0 : estimate * position;
      if (std::abs(predicted) > 4096) break;  // sharper than a float already
      estimate = (predicted + wrapped(std::atan2(r.sin, r.cos) - predicted)) / position;
    }
    frequency[pair] = estimate;
  }
  return frequency;
}

double magnitude(const Rotations& rotations) {
  double sum = 0;
  size_t count = 0;
  for (const auto& row : rotations) {
    for (const CosSin& r : row) {
      sum += std::hypot(r.cos, r.sin);
      ++count;
    }
  }
  return count ? sum / static_cast<double>(count) : 1;
}

std::string check_rotations(const Rotations& rotations, const std::vector<int64_t>& positions,
                            const std::vector<float>& inv_freq, double scale, double precision) {
  for (size_t p = 0; p < positions.size(); ++p) {
    for (size_t pair = 0; pair < inv_freq.size(); ++pair) {
      const double angle = static_cast<double>(positions[p]) * inv_freq[pair];
      const double tolerance = scale * (20 * precision + 4 * precision * std::abs(angle));
      const CosSin& r = rotations[p][pair];
      if (std::abs(r.cos - scale * std::cos(angle)) > tolerance ||
          std::abs(r.sin - scale * std::sin(angle)) > tolerance) {
        return concat("at position ", positions[p], " pair ", pair,
                      " is not turned by position times a frequency");
      }
    }
  }
  return {};
}

}  // namespace quern::passes
