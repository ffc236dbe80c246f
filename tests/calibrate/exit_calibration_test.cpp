#include "calibrate/exit_calibration.h"

#include <gtest/gtest.h>

#include <random>

#include "calibrate/draft_search.h"
#include "runtime/layers/blocks.h"
#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"

namespace quern::calibrate {
namespace {

using test::random_tokens;

std::unique_ptr<Graph> decoder_with_exits() {
  auto graph = test::random_decoder({.layers = 4});
  runtime::LayerBuilder builder(*graph);
  for (const int64_t layer : {1, 3})
    builder.output(builder.logits(builder.stream(layer)), runtime::exit_output(layer));
  builder.commit();
  return graph;
}

TokenWindows windows(int64_t count, int64_t length) {
  TokenWindows all;
  for (int64_t i = 0; i < count; ++i) all.push_back(random_tokens(length, 97, static_cast<unsigned>(i) + 1));
  return all;
}

// A p-value is valid if it is at most d with probability at most d where the hypothesis is true; and it is
// worth something if it is small where the risk is far below.
TEST(HoeffdingBentkus, IsAPValue) {
  std::mt19937 random(7);
  for (const double alpha : {0.05, 0.3}) {
    std::bernoulli_distribution loss(alpha);
    int rejected = 0;
    constexpr int kTrials = 4000;
    for (int trial = 0; trial < kTrials; ++trial) {
      int sum = 0;
      for (int i = 0; i < 100; ++i) sum += loss(random) ? 1 : 0;
      rejected += hoeffding_bentkus_p(sum / 100.0, 100, alpha) <= 0.1 ? 1 : 0;
    }
    EXPECT_LE(rejected, kTrials / 10);
    EXPECT_GT(rejected, 0);
  }
  EXPECT_LT(hoeffding_bentkus_p(0, 100, 0.05), 0.01);
  EXPECT_LT(hoeffding_bentkus_p(0.01, 500, 0.05), 1e-4);
  EXPECT_EQ(hoeffding_bentkus_p(0.05, 100, 0.05), 1);
  EXPECT_EQ(hoeffding_bentkus_p(0.5, 100, 0.05), 1);
}

// (1 - alpha)^n is the exact probability of no loss; Bentkus' bound is e times that, Hoeffding's that itself.
TEST(HoeffdingBentkus, WithoutLossesItIsTheProbabilityOfThat) {
  EXPECT_NEAR(hoeffding_bentkus_p(0, 60, 0.05), std::pow(0.95, 60), 1e-12);
}

TEST(ExitEvaluator, WithoutExitsNothingIsLost) {
  const auto graph = decoder_with_exits();
  runtime::Session session(runtime::compile_early_exit(*graph, {}), {.threads = 1});
  ExitEvaluator evaluator(session, *graph, {}, windows(5, 24), {.prompt = 4, .parallel = 2});
  const ExitQuality whole = evaluator.evaluate(2);
  EXPECT_EQ(whole.tokens, 5 * 19);
  EXPECT_EQ(whole.agreement, 1);
  EXPECT_NEAR(whole.perplexity_increase(), 0, 1e-9);
  EXPECT_EQ(whole.exits.average_layers(), 4);
  for (const double loss : whole.losses) EXPECT_EQ(loss, 0);
  const ExitQuality shallow = evaluator.evaluate(0);
  EXPECT_EQ(shallow.exits.average_layers(), 1);
  EXPECT_LT(shallow.agreement, 1);
  EXPECT_NEAR(shallow.full_perplexity, whole.full_perplexity, 1e-9);
}

TEST(ExitEvaluator, RefusesTextThatIsTooShort) {
  const auto graph = decoder_with_exits();
  runtime::Session session(runtime::compile_early_exit(*graph, {}), {.threads = 1});
  EXPECT_QUERN_ERROR(ExitEvaluator(session, *graph, {}, windows(3, 10), {.prompt = 16}), ErrorCode::BadData,
                     "18 tokens");
}

// Each threshold but the last one tried was accepted, in descending order, and the least of them is the
// result.
TEST(FindExitThreshold, StopsAtTheFirstThatIsNotShownToBeSafe) {
  const auto graph = decoder_with_exits();
  runtime::Session session(runtime::compile_early_exit(*graph, {}), {.threads = 1});
  ExitEvaluator evaluator(session, *graph, {}, windows(40, 20), {.prompt = 4});
  const ThresholdSearch search{.tolerance = 0.3, .delta = 0.1, .thresholds = {1, 0.5, 0.2, 0.1, 0.05, 0}};
  const ThresholdResult result = find_exit_threshold(evaluator, search);
  ASSERT_GE(result.steps.size(), 2u);
  EXPECT_LT(result.steps.size(), 7u);
  ASSERT_TRUE(result.threshold.has_value());
  for (size_t i = 0; i + 1 < result.steps.size(); ++i) EXPECT_TRUE(result.steps[i].accepted);
  EXPECT_FALSE(result.steps.back().accepted);
  EXPECT_EQ(*result.threshold, result.steps[result.steps.size() - 2].threshold);
  EXPECT_QUERN_ERROR(find_exit_threshold(evaluator, {.thresholds = {0.5, 0.6}}), ErrorCode::InvalidArgument,
                     "descend");
}

TEST(DraftSearch, TheSpeedUpIsLeviathans) {
  // Guesses that are always right and free: 17 tokens for a run and its rows.
  const DraftCandidate free = weigh({.layers = {0}}, 1, 0, 0, 0);
  EXPECT_EQ(free.length, 16);
  EXPECT_NEAR(free.speedup, 17, 1e-9);
  const DraftCandidate usual = weigh({.layers = {0}}, 0.8, 0.25, 0, 0);
  EXPECT_EQ(usual.length, 3);
  EXPECT_NEAR(usual.speedup, (1 - std::pow(0.8, 4)) / 0.2 / 1.75, 1e-9);
}

// A model one layer of which does nothing: leaving that one out loses nothing.
TEST(DraftSearch, FindsTheLayerThatIsNotMissed) {
  const auto graph = test::random_decoder({.layers = 4});
  {
    Rewriter rewriter(*graph);
    int norm = 0;
    for (const Node* node : graph->nodes()) {
      if (node->op() != "SkipSimplifiedLayerNormalization") continue;
      if (norm++ / 2 != 1) continue;
      Value* weight = node->input(1)->producer()->input(1);
      rewriter.set_constant(weight, Tensor::zeros(DType::F32, weight->tensor()->shape()));
    }
    rewriter.commit();
  }
  const std::vector<int64_t> text = random_tokens(200, 97, 5);
  const DraftSearchResult result =
      search_draft(*graph, text, {.context = 32, .positions = 60, .session = {.threads = 1}});
  ASSERT_EQ(result.candidates.size(), 3u);  // of 1, 2 and 3 layers
  EXPECT_EQ(result.candidates[2].draft.layers, (std::vector<int64_t>{0, 2, 3}));
  EXPECT_EQ(result.candidates[2].agreement, 1);
  EXPECT_LT(result.candidates[0].agreement, 1);
  EXPECT_LT(result.candidates[0].cost, result.candidates[2].cost);
  EXPECT_QUERN_ERROR(search_draft(*graph, std::span(text).first(20), {}), ErrorCode::BadData, "20 tokens");
}

}  // namespace
}  // namespace quern::calibrate
