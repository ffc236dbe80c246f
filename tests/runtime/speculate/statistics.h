// Whether draws have the distribution that they should have.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace quern::test {

// Pearson's statistic of counts against probabilities. What is expected less than five times is taken
// together.
struct ChiSquare {
  double statistic = 0;
  double freedom = -1;
  double impossible = 0;  // draws of what has no probability
};

inline ChiSquare chi_square(const std::vector<int64_t>& counts, const std::vector<double>& probabilities) {
  ChiSquare result;
  double total = 0, rare_expected = 0, rare_seen = 0;
  for (const int64_t count : counts) total += static_cast<double>(count);
  const auto add = [&](double seen, double expected) {
    result.statistic += (seen - expected) * (seen - expected) / expected;
    result.freedom += 1;
  };
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = total * probabilities[i], seen = static_cast<double>(counts[i]);
    if (probabilities[i] == 0) {
      result.impossible += seen;
    } else if (expected < 5) {
      rare_expected += expected;
      rare_seen += seen;
    } else {
      add(seen, expected);
    }
  }
  if (rare_expected >= 5) add(rare_seen, rare_expected);
  return result;
}

// The value that a true distribution exceeds once in 100,000 times (Wilson and Hilferty's approximation).
inline double chi_square_limit(double freedom) {
  const double a = 2 / (9 * freedom), t = 1 - a + 4.265 * std::sqrt(a);
  return freedom * t * t * t;
}

inline bool fits(const std::vector<int64_t>& counts, const std::vector<double>& probabilities) {
  const ChiSquare test = chi_square(counts, probabilities);
  return test.impossible == 0 && (test.freedom < 1 || test.statistic <= chi_square_limit(test.freedom));
}

}  // namespace quern::test
