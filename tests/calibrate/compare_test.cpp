#include "calibrate/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "calibrate/logit_metrics.h"
#include "tests/support/expect_error.h"

namespace quern::calibrate {
namespace {

constexpr int64_t kVocabulary = 11;

// Logits that depend on the last two tokens, so that a window's first position differs from the same token in
// the middle; `noise` makes a worse copy of it.
class ToyModel : public ScoredModel {
 public:
  explicit ToyModel(float noise, Kind kind = Kind::NextToken) : noise_(noise), kind_(kind) {}
  Kind kind() const override { return kind_; }
  int64_t width() const override { return width_override > 0 ? width_override : kVocabulary; }
  int64_t vocabulary() const override { return kVocabulary; }
  int64_t context() const override { return context_override; }

  void start(std::span<const int64_t> ids, int64_t first) override {
    ids_.assign(ids.begin(), ids.end());
    next_ = first;
    ++starts;
  }
  std::span<const float* const> logits(int64_t first, int64_t count) override {
    EXPECT_EQ(first, next_);
    next_ = first + count;
    largest_chunk = std::max(largest_chunk, count);
    rows_.clear();
    pointers_.clear();
    for (int64_t i = 0; i < count; ++i) rows_.push_back(row(ids_, first + i));
    for (const auto& row : rows_) pointers_.push_back(row.data());
    return pointers_;
  }
  std::vector<float> row(const std::vector<int64_t>& ids, int64_t position) const {
    const int64_t here = ids[static_cast<size_t>(position)];
    const int64_t before = position > 0 ? ids[static_cast<size_t>(position - 1)] : 5;
    std::vector<float> logits;
    for (int64_t v = 0; v < width(); ++v) {
      const auto signal = static_cast<float>((here * 7 + before * 3 + v * v) % 13) / 3;
      logits.push_back(signal + noise_ * static_cast<float>((here + v * 5) % 7 - 3));
    }
    if (position == nan_at) logits[2] = std::numeric_limits<float>::quiet_NaN();
    return logits;
  }

  int64_t width_override = 0;
  int64_t context_override = 0;
  int64_t nan_at = -1;
  int starts = 0;
  int64_t largest_chunk = 0;

 private:
  float noise_;
  Kind kind_;
  std::vector<int64_t> ids_;
  int64_t next_ = 0;
  std::vector<std::vector<float>> rows_;
  std::vector<const float*> pointers_;
};

std::vector<int64_t> some_ids(int64_t count, int64_t salt = 0) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back((i * i + 3 * i + salt) % kVocabulary);
  return ids;
}

TokenData one_document(std::vector<int64_t> ids) {
  return {.source = "x.jsonl", .documents = {{.ids = std::move(ids), .line = 1}}};
}

TEST(Compare, PerplexityIsThatOfTheDefinition) {
  ToyModel reference(0);
  ToyModel candidate(0.3F);
  const std::vector<int64_t> ids = some_ids(103);
  const Comparison result = compare(reference, candidate, one_document(ids), {.protocol = {.context = 10}});
  EXPECT_EQ(result.windows, 10);
  EXPECT_EQ(result.scored, 100);
  EXPECT_EQ(result.tokens_computed, 100);
  double nll = 0;
  for (int64_t w = 0; w < 10; ++w) {
    const std::vector<int64_t> window(ids.begin() + w * 10, ids.begin() + w * 10 + 10);
    for (int64_t p = 0; p < 10; ++p) {
      nll += negative_log_likelihood(candidate.row(window, p), ids[static_cast<size_t>(w * 10 + p + 1)]);
    }
  }
  EXPECT_NEAR(result.candidate.perplexity.value, std::exp(nll / 100), 1e-9);
  EXPECT_NEAR(result.perplexity_increase.value,
              result.candidate.perplexity.value / result.reference.perplexity.value - 1, 1e-9);
  EXPECT_GT(result.agreement.kl_mean, 0);
  EXPECT_LE(result.agreement.kl_median, result.agreement.kl_p99);
  EXPECT_LE(result.agreement.kl_p99, result.agreement.kl_max);
  EXPECT_LE(result.agreement.top1.value, result.agreement.top5.value);
  ASSERT_EQ(result.kl_by_position.size(), 10u);
  ASSERT_EQ(result.by_window.size(), 10u);
  double mean = 0;
  for (const double kl : result.kl_by_position) mean += kl / 10;
  EXPECT_NEAR(mean, result.agreement.kl_mean, 1e-12);
}

TEST(Compare, AModelAgreesWithItself) {
  ToyModel reference(0.2F);
  ToyModel candidate(0.2F);
  const Comparison result =
      compare(reference, candidate, one_document(some_ids(300)), {.protocol = {.context = 16}});
  EXPECT_EQ(result.agreement.kl_max, 0);
  EXPECT_EQ(result.agreement.top1.value, 1);
  EXPECT_EQ(result.perplexity_increase.value, 0);
  ASSERT_TRUE(result.perplexity_increase.interval.has_value());
  EXPECT_EQ(result.perplexity_increase.interval->high, 0);
}

TEST(Compare, IntervalsHoldTheFigures) {
  ToyModel reference(0);
  ToyModel candidate(0.3F);
  const Comparison result =
      compare(reference, candidate, one_document(some_ids(1000)), {.protocol = {.context = 13}});
  for (const Figure& figure : {result.reference.perplexity, result.candidate.perplexity,
                               result.perplexity_increase, result.agreement.top1, result.agreement.top5}) {
    ASSERT_TRUE(figure.interval.has_value());
    EXPECT_LE(figure.interval->low, figure.value);
    EXPECT_GE(figure.interval->high, figure.value);
  }
}

TEST(Compare, OverlappingWindowsScoreEachPositionOnce) {
  ToyModel reference(0);
  ToyModel candidate(0.3F);
  const Comparison result =
      compare(reference, candidate, one_document(some_ids(101)), {.protocol = {.context = 20, .stride = 10}});
  EXPECT_EQ(result.windows, 9);
  EXPECT_EQ(result.scored, 100);
  EXPECT_EQ(result.tokens_computed, 180);
}

TEST(Compare, ScoresLongWindowsInChunks) {
  ToyModel reference(0);
  ToyModel candidate(0.3F);
  const Comparison whole =
      compare(reference, candidate, one_document(some_ids(1001)), {.protocol = {.context = 1000}});
  EXPECT_EQ(whole.scored, 1000);
  EXPECT_EQ(reference.largest_chunk, 256);
  EXPECT_EQ(reference.starts, 1);
}

TEST(Compare, EveryDocumentIsScoredOnItsOwn) {
  ToyModel reference(0);
  ToyModel candidate(0.1F);
  TokenData data{
      .source = "x.jsonl",
      .documents = {
          {.ids = some_ids(9), .line = 1}, {.ids = {4}, .line = 2}, {.ids = some_ids(5), .line = 3}}};
  const Comparison result = compare(reference, candidate, data, {.protocol = {.context = 4}});
  EXPECT_EQ(result.windows, 3);
  EXPECT_EQ(result.scored, 12);
  EXPECT_EQ(result.too_short, 1);
}

TEST(Compare, AShortTextSaysWithWhichContextItWasScored) {
  ToyModel reference(0);
  ToyModel candidate(0.1F);
  const Comparison result = compare(reference, candidate, one_document(some_ids(30)), {});
  EXPECT_EQ(result.protocol.context, 29);
  EXPECT_EQ(result.scored, 29);
  EXPECT_FALSE(result.perplexity_increase.interval.has_value());
}

TEST(Compare, ClassifiersAreRightOrWrong) {
  ToyModel reference(0, ScoredModel::Kind::Classifier);
  ToyModel candidate(0.4F, ScoredModel::Kind::Classifier);
  TokenData data{.source = "x.jsonl"};
  int reference_right = 0;
  int candidate_right = 0;
  int agree = 0;
  for (int64_t i = 0; i < 40; ++i) {
    const std::vector<int64_t> ids = some_ids(4 + i % 3, i);
    const int64_t label = i * 3 % 5 + (i % 2) * 3;
    data.documents.push_back({.ids = ids, .label = label, .line = i + 1});
    const auto top = [&](const ToyModel& model) {
      const std::vector<float> row = model.row(ids, 0);
      return std::max_element(row.begin(), row.end()) - row.begin();
    };
    reference_right += top(reference) == label ? 1 : 0;
    candidate_right += top(candidate) == label ? 1 : 0;
    agree += top(reference) == top(candidate) ? 1 : 0;
  }
  const Comparison result = compare(reference, candidate, data, {});
  EXPECT_TRUE(result.labelled);
  EXPECT_EQ(result.scored, 40);
  EXPECT_DOUBLE_EQ(result.reference.accuracy.value, reference_right / 40.0);
  EXPECT_DOUBLE_EQ(result.candidate.accuracy.value, candidate_right / 40.0);
  EXPECT_DOUBLE_EQ(result.agreement.top1.value, agree / 40.0);
  EXPECT_GT(reference_right, 0);
  EXPECT_LT(agree, 40);
}

TEST(Compare, ReportsProgressAndStopsAtTheLimit) {
  ToyModel reference(0);
  ToyModel candidate(0);
  std::vector<int64_t> seen;
  const auto progress = [&](int64_t done, int64_t total) {
    seen.push_back(done);
    EXPECT_EQ(total, 3);
  };
  compare(reference, candidate, one_document(some_ids(200)),
          {.protocol = {.context = 10}, .max_windows = 3, .progress = progress});
  EXPECT_EQ(seen, (std::vector<int64_t>{1, 2, 3}));
}

TEST(Compare, RefusesWhatCannotBeCompared) {
  ToyModel reference(0);
  ToyModel candidate(0);
  const TokenData data = one_document(some_ids(50));
  const auto run = [&](const CompareOptions& options = {.protocol = {.context = 8}}) {
    compare(reference, candidate, data, options);
  };
  candidate.width_override = 12;
  EXPECT_QUERN_ERROR(run(), ErrorCode::InvalidArgument, "11 logits", "12");
  candidate.width_override = 0;
  candidate.context_override = 7;
  EXPECT_QUERN_ERROR(run(), ErrorCode::InvalidArgument, "windows of 8 tokens", "candidate's context of 7");
  candidate.context_override = 0;
  EXPECT_QUERN_ERROR(run({.protocol = {.context = 8, .stride = 9}}), ErrorCode::InvalidArgument,
                     "stride of 9");
  ToyModel classifier(0, ScoredModel::Kind::Classifier);
  EXPECT_QUERN_ERROR(compare(reference, classifier, data, {}), ErrorCode::InvalidArgument, "classifier");
}

TEST(Compare, RefusesBadData) {
  ToyModel reference(0);
  ToyModel candidate(0);
  EXPECT_QUERN_ERROR(compare(reference, candidate, one_document({1, 2, 11}), {}), ErrorCode::BadData,
                     "line 1 of 'x.jsonl'", "token id 11", "vocabulary of 11");
  EXPECT_QUERN_ERROR(compare(reference, candidate, one_document({1}), {}), ErrorCode::BadData, "too short");
  ToyModel classifier(0, ScoredModel::Kind::Classifier);
  EXPECT_QUERN_ERROR(compare(classifier, classifier, one_document({}), {}), ErrorCode::BadData, "line 1",
                     "no tokens");
  TokenData data = one_document({1, 2});
  data.documents[0].label = 11;
  EXPECT_QUERN_ERROR(compare(classifier, classifier, data, {}), ErrorCode::BadData, "line 1", "label 11",
                     "0 to 10");
}

TEST(Compare, NamesTheModelWhoseLogitsAreNotNumbers) {
  ToyModel reference(0);
  ToyModel candidate(0);
  candidate.nan_at = 3;
  EXPECT_QUERN_ERROR(compare(reference, candidate, one_document(some_ids(50)), {.protocol = {.context = 8}}),
                     ErrorCode::InvalidModel, "candidate's logits at position 3");
  std::swap(reference.nan_at, candidate.nan_at);
  EXPECT_QUERN_ERROR(compare(reference, candidate, one_document(some_ids(50)), {.protocol = {.context = 8}}),
                     ErrorCode::InvalidModel, "original's logits at position 3");
}

}  // namespace
}  // namespace quern::calibrate
