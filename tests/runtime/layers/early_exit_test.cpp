// Early exits: what they compute, and what they leave behind for the tokens after them.
#include "runtime/layers/early_exit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ir/rewriter.h"
#include "runtime/generate/generate.h"
#include "runtime/layers/blocks.h"
#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"

namespace quern::runtime {
namespace {

using test::random_tokens;

// With exit heads that share the final norm and head.
std::unique_ptr<Graph> with_exits(test::DecoderShape shape, const std::vector<int64_t>& layers) {
  auto graph = test::random_decoder(shape);
  LayerBuilder builder(*graph);
  for (const int64_t layer : layers) {
    builder.output(builder.logits(builder.at_head(builder.stream(layer))), exit_output(layer));
  }
  builder.commit();
  return graph;
}

std::vector<float> row(std::span<const float> logits) {
  return {logits.begin(), logits.end()};
}

class EarlyExitTest : public testing::TestWithParam<test::NamedDecoder> {
 protected:
  EarlyExitTest() {
    test::DecoderShape shape = GetParam().shape;
    shape.layers = 4;
    graph_ = with_exits(shape, {1, 3});
  }
  std::unique_ptr<Graph> graph_;
};

constexpr double kNever = 2, kAtOnce = -2;

TEST_P(EarlyExitTest, WithoutAnExitTheLogitsAreTheModels) {
  Session plain(Program::compile(*graph_), {.threads = 1});
  Session session(compile_early_exit(*graph_, {}), {.threads = 1});
  EarlyExitDecoder decoder(session, *graph_, {});
  Sequence a = plain.new_sequence(), b = session.new_sequence();
  for (const int64_t token : random_tokens(20, 97, 3)) {
    const auto expected = row(plain.run(a, std::span(&token, 1)));
    const SequenceStep step{.sequence = &b, .tokens = std::span(&token, 1)};
    decoder.run({&step, 1}, {&kNever, 1});
    ASSERT_EQ(row(decoder.logits(0)), expected);
    EXPECT_EQ(decoder.layers_run(0), 4);
    EXPECT_EQ(decoder.confidences(0).size(), 2u);
  }
  EXPECT_EQ(decoder.statistics().average_layers(), 4);
}

// The first layers see what the first layers kept, whatever became of the others.
TEST_P(EarlyExitTest, AFixedExitIsAModelOfItsFirstLayers) {
  const ExitRule rule{.confidence = ExitConfidence::Always, .threshold = 0, .layers = {3}};
  Session plain(Program::compile(*graph_, {.entries = {{exit_output(3)}}}), {.threads = 1});
  Session session(compile_early_exit(*graph_, rule), {.threads = 1});
  EarlyExitDecoder decoder(session, *graph_, rule);
  Sequence a = plain.new_sequence(), b = session.new_sequence();
  for (const int64_t token : random_tokens(20, 97, 4)) {
    const auto expected = row(plain.run(a, std::span(&token, 1)));
    const SequenceStep step{.sequence = &b, .tokens = std::span(&token, 1)};
    decoder.run({&step, 1}, {&rule.threshold, 1});
    ASSERT_EQ(row(decoder.logits(0)), expected);
  }
  EXPECT_EQ(decoder.statistics().average_layers(), 3);
}

// Each token gets what it would get alone, wherever its neighbours leave.
TEST_P(EarlyExitTest, InABatchAsAlone) {
  Session session(compile_early_exit(*graph_, {}), {.threads = 1});
  EarlyExitDecoder decoder(session, *graph_, {});
  const auto threshold = [](size_t text, size_t t) { return (t * 7 + text * 3) % 5 < 2 ? kAtOnce : kNever; };
  const std::vector<std::vector<int64_t>> texts = {random_tokens(15, 97, 1), random_tokens(15, 97, 2),
                                                   random_tokens(15, 97, 3)};
  std::vector<std::vector<std::vector<float>>> alone(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    Sequence sequence = session.new_sequence();
    for (size_t t = 0; t < texts[i].size(); ++t) {
      const SequenceStep step{.sequence = &sequence, .tokens = std::span(texts[i]).subspan(t, 1)};
      const double limit = threshold(i, t);
      decoder.run({&step, 1}, {&limit, 1});
      alone[i].push_back(row(decoder.logits(0)));
    }
  }
  std::vector<Sequence> sequences;
  for (size_t i = 0; i < texts.size(); ++i) sequences.push_back(session.new_sequence());
  for (size_t t = 0; t < texts[0].size(); ++t) {
    std::vector<SequenceStep> steps;
    std::vector<double> limits;
    for (size_t i = 0; i < texts.size(); ++i) {
      steps.push_back({.sequence = &sequences[i], .tokens = std::span(texts[i]).subspan(t, 1)});
      limits.push_back(threshold(i, t));
    }
    decoder.run(steps, limits);
    for (size_t i = 0; i < texts.size(); ++i) ASSERT_EQ(row(decoder.logits(i)), alone[i][t]) << t;
  }
}

INSTANTIATE_TEST_SUITE_P(All, EarlyExitTest, testing::ValuesIn(test::decoder_variations()),
                         [](const auto& info) { return info.param.name; });

// Layers that add nothing to the stream: what is projected from the exit is what they would have kept, and an
// exit before them says what the model says.
TEST(EarlyExit, SkippedKeysAndValuesAreThoseOfTheExitState) {
  auto graph = test::random_decoder({.layers = 4});
  {
    Rewriter rewriter(*graph);
    int norm = 0;
    for (const Node* node : graph->nodes()) {
      if (node->op() != "SkipSimplifiedLayerNormalization") continue;
      if (norm++ < 4) continue;  // those of layers 0 and 1
      const Node* product = node->input(1)->producer();
      if (product->op() == "SelectRows") product = product->input(0)->producer();
      Value* weight = product->input(1);
      rewriter.set_constant(weight, Tensor::zeros(DType::F32, weight->tensor()->shape()));
    }
    rewriter.commit();
    LayerBuilder builder(*graph);
    builder.output(builder.logits(builder.stream(2)), exit_output(2));
    builder.commit();
  }
  Session plain(Program::compile(*graph), {.threads = 1});
  Session session(compile_early_exit(*graph, {}), {.threads = 1});
  EarlyExitDecoder decoder(session, *graph, {});
  Sequence a = plain.new_sequence(), b = session.new_sequence();
  size_t t = 0;
  for (const int64_t token : random_tokens(30, 97, 5)) {
    const auto expected = row(plain.run(a, std::span(&token, 1)));
    const SequenceStep step{.sequence = &b, .tokens = std::span(&token, 1)};
    const double threshold = ++t % 3 == 0 ? kNever : kAtOnce;
    decoder.run({&step, 1}, {&threshold, 1});
    ASSERT_EQ(row(decoder.logits(0)), expected) << t;
  }
  EXPECT_EQ(decoder.statistics().tokens, (std::vector<int64_t>{20, 10}));
}

TEST(EarlyExit, Confidences) {
  const auto graph = with_exits({.layers = 3}, {1});
  const auto run = [&](ExitRule rule) {
    Session session(compile_early_exit(*graph, rule), {.threads = 1});
    EarlyExitDecoder decoder(session, *graph, rule);
    Sequence sequence = session.new_sequence();
    const int64_t token = 5;
    const SequenceStep step{.sequence = &sequence, .tokens = std::span(&token, 1)};
    decoder.run({&step, 1}, {&kAtOnce, 1});
    std::vector<double> p;
    double sum = 0;
    for (const float logit : decoder.logits(0)) sum += std::exp(static_cast<double>(logit));
    for (const float logit : decoder.logits(0)) p.push_back(std::exp(static_cast<double>(logit)) / sum);
    std::sort(p.rbegin(), p.rend());
    return std::pair(decoder.confidences(0)[0], p);
  };
  const auto [margin, p] = run({.confidence = ExitConfidence::Margin});
  EXPECT_NEAR(margin, p[0] - p[1], 1e-6);
  EXPECT_NEAR(run({.confidence = ExitConfidence::MaxProbability}).first, p[0], 1e-6);
  double entropy = 0;
  for (const double each : p) entropy -= each * std::log(each);
  EXPECT_NEAR(run({.confidence = ExitConfidence::Entropy}).first, 1 - entropy / std::log(97.0), 1e-6);
  const double saturation = run({.confidence = ExitConfidence::Saturation}).first;
  EXPECT_GT(saturation, -1);
  EXPECT_LT(saturation, 1);
  ExitRule classifier{.confidence = ExitConfidence::Classifier,
                      .classifiers = {{std::vector<float>(48), 1.0f}}};
  EXPECT_NEAR(run(classifier).first, 1 / (1 + std::exp(-1.0)), 1e-6);
  classifier.classifiers[0].weight.resize(47);
  EXPECT_QUERN_ERROR(run(classifier), ErrorCode::InvalidArgument, "47", "48");
}

TEST(EarlyExit, TheThresholdDecays) {
  const ExitRule rule{.threshold = 0.5, .decay = 4};
  EXPECT_NEAR(rule.threshold_at(0, 100), 0.45 + 0.1, 1e-12);
  EXPECT_NEAR(rule.threshold_at(100, 100), 0.45 + 0.1 * std::exp(-4.0), 1e-12);
  EXPECT_EQ(ExitRule{.threshold = 0.5}.threshold_at(0, 100), 0.5);
}

TEST(EarlyExit, GeneratesAndCounts) {
  const auto graph = with_exits({.layers = 4}, {1, 2});
  const std::vector<std::vector<int64_t>> prompts = {random_tokens(20, 97, 1), random_tokens(9, 97, 2),
                                                     random_tokens(30, 97, 3)};
  const auto decode = [&](double threshold, int64_t parallel, std::shared_ptr<ExitStatistics> counted) {
    const ExitRule rule{.threshold = threshold};
    Session session(compile_early_exit(*graph, rule), {.threads = 1});
    GenerateOptions options{.max_new_tokens = 20, .parallel = parallel};
    options.strategy = [&](Session& s, Sampler& sampler) {
      return std::make_unique<EarlyExitDecoding>(s, sampler, *graph, rule, counted);
    };
    std::vector<std::vector<int64_t>> texts;
    for (const auto& result : generate(session, prompts, options).results) texts.push_back(result.ids);
    return texts;
  };
  // The confidence that half of some tokens reach.
  const double usual = [&] {
    Session session(compile_early_exit(*graph, {}), {.threads = 1});
    EarlyExitDecoder decoder(session, *graph, {});
    Sequence sequence = session.new_sequence();
    std::vector<double> seen;
    for (const int64_t token : random_tokens(41, 97, 8)) {
      const SequenceStep step{.sequence = &sequence, .tokens = std::span(&token, 1)};
      decoder.run({&step, 1}, {&kNever, 1});
      seen.push_back(decoder.confidences(0)[0]);
    }
    std::sort(seen.begin(), seen.end());
    return seen[20];
  }();
  const auto counted = std::make_shared<ExitStatistics>();
  const auto together = decode(usual, 0, counted);
  EXPECT_EQ(counted->total(), 3 * 19);
  EXPECT_GT(counted->tokens[0], 0);
  EXPECT_GT(counted->tokens[2], 0);
  EXPECT_LT(counted->average_layers(), 4);
  // One after another, prompts joining while others are decoded.
  EXPECT_EQ(decode(usual, 1, nullptr), together);
  EXPECT_EQ(decode(usual, 2, nullptr), together);
}

TEST(EarlyExit, RefusesExitsThatAreNotThere) {
  const auto bare = test::random_decoder({.layers = 3});
  EXPECT_QUERN_ERROR(compile_early_exit(*bare, {}), ErrorCode::InvalidArgument, "no exit heads");
  const auto graph = with_exits({.layers = 3}, {1});
  EXPECT_QUERN_ERROR(compile_early_exit(*graph, {.layers = {2}}), ErrorCode::InvalidArgument, "layer 2");
}

}  // namespace
}  // namespace quern::runtime
