#include "calibrate/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/generate/random.h"

namespace quern::calibrate {
namespace {

TEST(Quantile, InterpolatesAsNumPyDoes) {
  std::vector<double> values = {4, 1, 3, 2};
  EXPECT_DOUBLE_EQ(quantile(values, 0), 1);
  EXPECT_DOUBLE_EQ(quantile(values, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile(values, 0.9), 3.7);
  EXPECT_DOUBLE_EQ(quantile(values, 1), 4);
  EXPECT_TRUE(std::isnan(quantile({}, 0.5)));
}

TEST(Bootstrap, CoversTheTruthAboutAsOftenAsItPromises) {
  runtime::RandomStream random(1);
  int covered = 0;
  constexpr int kTrials = 300;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<Cluster> clusters;
    for (int i = 0; i < 60; ++i) clusters.push_back({random.next_uniform() + random.next_uniform(), 1});
    const Interval interval = bootstrap_interval(clusters, 400).value();
    covered += interval.low <= 1 && 1 <= interval.high ? 1 : 0;
  }
  // 95% of 300 is 285; the standard error of the count is under 4, and the percentile bootstrap runs a little
  // low.
  EXPECT_GT(covered, 268);
  EXPECT_LT(covered, 298);
}

TEST(Bootstrap, WeighsClusters) {
  const std::vector<Cluster> clusters(20, Cluster{6, 3});
  const Interval interval = bootstrap_interval(clusters).value();
  EXPECT_DOUBLE_EQ(interval.low, 2);
  EXPECT_DOUBLE_EQ(interval.high, 2);
}

TEST(Bootstrap, IsTheSameEveryTimeAndRefusesTooLittle) {
  std::vector<Cluster> clusters;
  for (int i = 0; i < 8; ++i) clusters.push_back({static_cast<double>(i), 1});
  EXPECT_EQ(bootstrap_interval(clusters)->low, bootstrap_interval(clusters)->low);
  EXPECT_LT(bootstrap_interval(clusters)->low, 3.5);
  EXPECT_GT(bootstrap_interval(clusters)->high, 3.5);
  clusters.pop_back();
  EXPECT_FALSE(bootstrap_interval(clusters).has_value());
}

TEST(Histogram, CountsOutliersAtTheEnds) {
  const std::vector<double> values = {-1, 0, 0.4, 0.6, 1, 7, std::nan("")};
  EXPECT_EQ(histogram(values, 0, 1, 2), (std::vector<int64_t>{3, 3}));
}

}  // namespace
}  // namespace quern::calibrate
