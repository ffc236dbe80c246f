#include "calibrate/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/generate/random.h"

namespace quern::calibrate {

double quantile(std::span<double> values, double q) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const double at = std::clamp(q, 0.0, 1.0) * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(below);
  std::nth_element(values.begin(), middle, values.end());
  const double low = *middle;
  const double fraction = at - static_cast<double>(below);
  if (fraction == 0) return low;
  const double high = *std::min_element(middle + 1, values.end());
  return low + fraction * (high - low);
}

std::optional<Interval> bootstrap_interval(std::span<const Cluster> clusters, int draws) {
  constexpr size_t kFewest = 8;
  if (clusters.size() < kFewest) return {};
  runtime::RandomStream random(0x5EED);
  std::vector<double> means;
  means.reserve(static_cast<size_t>(draws));
  for (int draw = 0; draw < draws; ++draw) {
    Cluster total;
    for (size_t i = 0; i < clusters.size(); ++i) {
      const auto pick = static_cast<size_t>(random.next_uniform() * static_cast<double>(clusters.size()));
      total.sum += clusters[pick].sum;
      total.weight += clusters[pick].weight;
    }
    means.push_back(total.sum / total.weight);
  }
  return Interval{.low = quantile(means, 0.025), .high = quantile(means, 0.975)};
}

std::vector<int64_t> histogram(std::span<const double> values, double low, double high, int bins) {
  std::vector<int64_t> counts(static_cast<size_t>(bins));
  for (const double value : values) {
    const double place = (value - low) / (high - low) * bins;
    // A NaN is in no bin; it must not become an index.
    if (std::isnan(place)) continue;
    counts[static_cast<size_t>(std::clamp(place, 0.0, static_cast<double>(bins - 1)))] += 1;
  }
  return counts;
}

}  // namespace quern::calibrate
