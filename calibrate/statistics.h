// Figures with their uncertainty.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace quern::calibrate {

// The value that a share `q` (0 to 1) of `values` does not exceed, interpolated linearly between neighbours
// (NumPy's default). NaN for no values. Reorders `values`.
double quantile(std::span<double> values, double q);

struct Interval {
  double low = 0;
  double high = 0;
};

// A quantity summed over one window (or document), with how much it is summed over.
struct Cluster {
  double sum = 0;
  double weight = 0;
};

// A 95% confidence interval of sum(sums) / sum(weights) by the percentile bootstrap over clusters (Efron &
// Tibshirani 1993, chapter 13). Tokens of one window are not independent; windows nearly are, so these are
// drawn as wholes. The draws are the same every time. Nothing for fewer than 8 clusters, where it would
// promise too much.
std::optional<Interval> bootstrap_interval(std::span<const Cluster> clusters, int draws = 2000);

// Equal-width bins from `low` to `high`; values outside count in the outermost bins.
std::vector<int64_t> histogram(std::span<const double> values, double low, double high, int bins);

}  // namespace quern::calibrate
