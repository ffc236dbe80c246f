#include "calibrate/logit_metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace quern::calibrate {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(LogitMetrics, LogSumExpNeitherOverflowsNorVanishes) {
  EXPECT_DOUBLE_EQ(log_sum_exp(std::vector<float>{1000, 1000}), 1000 + std::log(2.0));
  EXPECT_DOUBLE_EQ(log_sum_exp(std::vector<float>{-1000, -1000}), -1000 + std::log(2.0));
  EXPECT_DOUBLE_EQ(log_sum_exp(std::vector<float>{-kInf, 3}), 3);
  EXPECT_TRUE(std::isnan(log_sum_exp(std::vector<float>{-kInf, -kInf})));
  EXPECT_TRUE(std::isnan(log_sum_exp(std::vector<float>{0, kInf})));
  EXPECT_TRUE(std::isnan(log_sum_exp(std::vector<float>{0, std::nanf("")})));
}

TEST(LogitMetrics, NegativeLogLikelihoodOfAUniformDistribution) {
  EXPECT_NEAR(negative_log_likelihood(std::vector<float>(7, 0.5F), 3), std::log(7.0), 1e-12);
}

TEST(LogitMetrics, DivergenceOfKnownDistributions) {
  const std::vector<float> p = {std::log(0.5F), std::log(0.25F), std::log(0.25F)};
  const std::vector<float> q = {std::log(0.25F), std::log(0.25F), std::log(0.5F)};
  const RowComparison row = compare_rows(p, q);
  EXPECT_NEAR(row.kl, 0.5 * std::log(2.0) - 0.25 * std::log(2.0), 1e-7);
  EXPECT_EQ(row.reference_top, 0);
  EXPECT_FALSE(row.top1);
  EXPECT_TRUE(row.top5);
}

TEST(LogitMetrics, EqualDistributionsDoNotDiverge) {
  std::vector<float> p;
  std::vector<float> shifted;
  for (int i = 0; i < 4096; ++i) {
    p.push_back(static_cast<float>(i * 37 % 101) / 8);
    shifted.push_back(p.back() + 16);
  }
  EXPECT_EQ(compare_rows(p, p).kl, 0);
  // A constant added to all logits changes no probability.
  EXPECT_LT(compare_rows(p, shifted).kl, 1e-12);
  EXPECT_TRUE(compare_rows(p, shifted).top1);
}

TEST(LogitMetrics, SeesSmallDivergences) {
  std::vector<float> p(1000, 0);
  std::vector<float> q = p;
  q[0] = 1e-3F;
  // Second order: KL = var(delta) / 2, with delta 1e-3 at probability 1e-3.
  EXPECT_NEAR(compare_rows(p, q).kl, 0.5e-6 * 1e-3 * 0.999, 1e-12);
}

TEST(LogitMetrics, MaskedTokensCostNothingWhereTheReferenceNeverChoosesThem) {
  const std::vector<float> p = {0, 0, -kInf};
  const std::vector<float> q = {0, 0, 0};
  EXPECT_NEAR(compare_rows(p, q).kl, std::log(1.5), 1e-12);
  EXPECT_TRUE(std::isinf(compare_rows(q, p).kl));
}

TEST(LogitMetrics, SaysWhereThereIsNoDistribution) {
  const std::vector<float> good = {0, 1};
  EXPECT_FALSE(compare_rows(good, std::vector<float>{0, std::nanf("")}).finite);
  EXPECT_FALSE(compare_rows(std::vector<float>{kInf, 0}, good).finite);
  EXPECT_FALSE(compare_rows(std::vector<float>{-kInf, -kInf}, good).finite);
  EXPECT_TRUE(compare_rows(good, good).finite);
}

TEST(LogitMetrics, RanksBreakTiesByIndex) {
  const std::vector<float> logits = {1, 3, 3, 2, 2, 2};
  EXPECT_EQ(rank_of(logits, 1), 0);
  EXPECT_EQ(rank_of(logits, 2), 1);
  EXPECT_EQ(rank_of(logits, 5), 4);
  EXPECT_EQ(rank_of(logits, 0), 5);
}

TEST(LogitMetrics, TopFiveIsWhereTheReferencesChoiceStandsWithTheCandidate) {
  const std::vector<float> p = {9, 0, 0, 0, 0, 0, 0};
  EXPECT_TRUE(compare_rows(p, std::vector<float>{1, 2, 3, 4, 5, 0, 0}).top5);
  EXPECT_FALSE(compare_rows(p, std::vector<float>{1, 2, 3, 4, 5, 6, 0}).top5);
}

}  // namespace
}  // namespace quern::calibrate
