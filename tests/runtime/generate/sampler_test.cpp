#include "runtime/generate/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "tests/support/expect_error.h"

namespace quern::runtime {
namespace {

std::vector<float> random_logits(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(n);
  for (float& x : logits) x = normal(random);
  return logits;
}

// The rules as Hugging Face's processors have them, step by step on the whole vocabulary.
std::vector<double> oracle(std::vector<float> logits, const SamplingOptions& options,
                           const std::vector<int64_t>& history) {
  const std::set<int64_t> seen(history.begin(), history.end());
  std::vector<double> scores(logits.begin(), logits.end());
  const double none = -std::numeric_limits<double>::infinity();
  for (const int64_t id : seen) {
    double& s = scores[static_cast<size_t>(id)];
    s = s < 0 ? s * options.repetition_penalty : s / options.repetition_penalty;
  }
  for (double& s : scores) s /= options.temperature;
  const auto probabilities = [&] {
    const double top = *std::max_element(scores.begin(), scores.end());
    std::vector<double> p;
    double total = 0;
    for (const double s : scores) p.push_back(std::exp(s - top));
    for (const double x : p) total += x;
    for (double& x : p) x /= total;
    return p;
  };
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < scores.size()) {
    std::vector<double> sorted = scores;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    for (double& s : scores) s = s < sorted[static_cast<size_t>(options.top_k) - 1] ? none : s;
  }
  if (options.top_p < 1) {
    const std::vector<double> p = probabilities();
    std::vector<size_t> order(p.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
    double before = 0;
    for (const size_t i : order) {
      if (before >= options.top_p) scores[i] = none;
      before += p[i];
    }
  }
  if (options.min_p > 0) {
    const std::vector<double> p = probabilities();
    const double most = *std::max_element(p.begin(), p.end());
    for (size_t i = 0; i < p.size(); ++i) scores[i] = p[i] < options.min_p * most ? none : scores[i];
  }
  return probabilities();
}

TEST(Sampler, DistributionsFollowTheRules) {
  std::vector<SamplingOptions> all;
  for (const float temperature : {0.4f, 1.0f, 1.7f}) {
    for (const int64_t top_k : {0, 1, 7, 5000}) {
      for (const float top_p : {0.3f, 0.9f, 1.0f}) {
        for (const float min_p : {0.0f, 0.1f}) {
          all.push_back(
              {.sample = true, .temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p});
          all.back().repetition_penalty = top_k == 7 ? 1.3f : 1.0f;
        }
      }
    }
  }
  const std::vector<int64_t> history = {3, 5, 5, 90, 3};
  for (const size_t vocabulary : {100U, 2000U}) {
    const std::vector<float> logits = random_logits(vocabulary, 3);
    for (const SamplingOptions& options : all) {
      Sampler sampler(options);
      std::vector<double> got(vocabulary, 0);
      int64_t last = -1;
      double total = 0;
      for (const TokenProbability& candidate : sampler.distribution(logits, history)) {
        EXPECT_GT(candidate.id, last);
        last = candidate.id;
        got[static_cast<size_t>(candidate.id)] = candidate.probability;
        total += candidate.probability;
      }
      EXPECT_NEAR(total, 1, 1e-12);
      const std::vector<double> wanted = oracle(logits, options, history);
      for (size_t i = 0; i < vocabulary; ++i) {
        ASSERT_NEAR(got[i], wanted[i], 1e-6)
            << "token " << i << ", T " << options.temperature << ", k " << options.top_k << ", p "
            << options.top_p << ", min " << options.min_p;
        ASSERT_EQ(got[i] > 0, wanted[i] > 0);
      }
    }
  }
}

// Pearson's test over many draws with a fixed seed.
TEST(Sampler, DrawsByTheDistribution) {
  const std::vector<float> logits = random_logits(12, 8);
  Sampler sampler({.sample = true, .temperature = 0.8f, .top_k = 9});
  const auto span = sampler.distribution(logits, {});
  const std::vector<TokenProbability> expected(span.begin(), span.end());
  RandomStream random(42, 0);
  constexpr int kDraws = 200000;
  std::vector<int> counts(12);
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<size_t>(sampler.next(logits, {}, random))];
  double chi_square = 0;
  int drawn = 0;
  for (const TokenProbability& candidate : expected) {
    const double mean = candidate.probability * kDraws;
    chi_square += std::pow(counts[static_cast<size_t>(candidate.id)] - mean, 2) / mean;
    drawn += counts[static_cast<size_t>(candidate.id)];
  }
  EXPECT_EQ(drawn, kDraws);
  EXPECT_LT(chi_square, 26.1);  // 99.9% of chi-square with 8 degrees of freedom
  EXPECT_EQ(random.counter(), static_cast<uint64_t>(kDraws));
}

TEST(Sampler, GreedyTakesTheLowestOfEquals) {
  Sampler sampler({});
  RandomStream random;
  EXPECT_EQ(sampler.next(std::vector<float>{1, 3, 2, 3}, {}, random), 1);
  EXPECT_EQ(random.counter(), 0U);
  const float nan = std::nanf("");
  EXPECT_EQ(argmax(std::vector<float>{nan, -1, nan, -2}), 1);
  EXPECT_EQ(argmax(std::vector<float>{nan, nan}), 0);
  Sampler penalized({.repetition_penalty = 2.0f});
  EXPECT_EQ(penalized.next(std::vector<float>{1.1f, 2, -1}, std::vector<int64_t>{1}, random), 0);
}

// Qwen's table has rows for 151,936 tokens, its tokenizer 151,665.
TEST(Sampler, NeverTakesRowsThatPadTheVocabulary) {
  const std::vector<float> logits = {1, 3, 2, 9, 8};
  const std::vector<int64_t> history = {1, 4};
  for (const float penalty : {1.0f, 1.1f}) {
    SamplingOptions options{.repetition_penalty = penalty, .vocabulary = 3};
    RandomStream random(1, 0);
    EXPECT_EQ(Sampler(options).next(logits, history, random), 1);
    options.sample = true;
    Sampler sampler(options);
    const auto distribution = sampler.distribution(logits, history);
    EXPECT_EQ(distribution.back().id, 2);
    for (int i = 0; i < 100; ++i) EXPECT_LT(sampler.next(logits, history, random), 3);
  }
  RandomStream random(1, 0);
  EXPECT_EQ(Sampler({.vocabulary = 7}).next(logits, {}, random), 3);
}

TEST(Sampler, SurvivesNonsenseLogits) {
  RandomStream random;
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  Sampler sampler({.sample = true, .top_k = 2, .top_p = 0.9f, .min_p = 0.1f});
  for (const std::vector<float>& logits : {std::vector<float>{nan, nan, nan},
                                           {-infinity, -infinity, -infinity},
                                           {infinity, 1, 2},
                                           {nan, 1, -infinity}}) {
    const int64_t id = sampler.next(logits, {}, random);
    EXPECT_GE(id, 0);
    EXPECT_LT(id, 3);
  }
}

TEST(Sampler, RefusesOptionsOutOfRange) {
  EXPECT_QUERN_ERROR(Sampler({.temperature = 0}), ErrorCode::InvalidArgument, "temperature");
  EXPECT_QUERN_ERROR(Sampler({.temperature = std::nanf("")}), ErrorCode::InvalidArgument, "temperature");
  EXPECT_QUERN_ERROR(Sampler({.top_k = -1}), ErrorCode::InvalidArgument, "top_k");
  EXPECT_QUERN_ERROR(Sampler({.top_p = 0}), ErrorCode::InvalidArgument, "top_p");
  EXPECT_QUERN_ERROR(Sampler({.top_p = 1.5f}), ErrorCode::InvalidArgument, "top_p");
  EXPECT_QUERN_ERROR(Sampler({.min_p = 2}), ErrorCode::InvalidArgument, "min_p");
  EXPECT_QUERN_ERROR(Sampler({.repetition_penalty = 0}), ErrorCode::InvalidArgument, "repetition_penalty");
}

// These numbers are what every platform must give.
TEST(RandomStream, IsTheSameEverywhere) {
  RandomStream stream(1, 0), other(1, 1);
  const uint64_t first = stream.next_bits(), second = stream.next_bits();
  EXPECT_NE(first, second);
  EXPECT_NE(first, other.next_bits());
  stream.set_counter(0);
  EXPECT_EQ(stream.next_bits(), first);
  stream.set_counter(0);
  double sum = 0;
  for (int i = 0; i < 100000; ++i) {
    const double u = stream.next_uniform();
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
  }
  EXPECT_NEAR(sum / 100000, 0.5, 0.005);
  RandomStream known(42, 7);
  EXPECT_EQ(known.next_bits(), 1552542996267382703U);
}

}  // namespace
}  // namespace quern::runtime
