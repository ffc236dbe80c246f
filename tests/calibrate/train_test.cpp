#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "calibrate/medusa_tuning.h"
#include "calibrate/train/trainer.h"
#include "passes/heads/trained_medusa.h"
#include "passes/registry.h"
#include "runtime/decoder/hidden_states.h"
#include "runtime/speculate/medusa_heads.h"
#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace quern::calibrate::train {
namespace {

constexpr int64_t kWidth = 7, kVocabulary = 11, kRows = 5;

std::vector<float> floats(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.5f);
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

Head some_head(int64_t blocks, bool own) {
  Head head{
      .name = "head", .form = std::make_unique<ResidualSilu>("0", kWidth, blocks), .projection = nullptr};
  head.trains_projection = own;
  head.projection = std::make_shared<Parameter>("u", Shape{kVocabulary, kWidth}, true);
  unsigned seed = 20;
  for (Parameter* p : head.form->parameters()) p->value = floats(p->size(), seed++);
  head.projection->value = floats(head.projection->size(), 5);
  return head;
}

// Gradients against differences of the loss.
TEST(RunHead, HasTheGradientsOfItsLoss) {
  const std::vector<float> states = floats(kRows * kWidth, 1);
  const std::vector<int64_t> targets = {3, 0, -1, 10, 3};
  for (const int64_t blocks : {1, 2}) {
    Head head = some_head(blocks, true);
    const HeadScore score = run_head(head, states, targets, 0.7);
    EXPECT_EQ(score.rows, 4);
    for (Parameter* p : head.trained()) {
      for (size_t i = 0; i < p->size(); i += 3) {
        const float kept = p->value[i], step = 1e-2f;
        p->value[i] = kept + step;
        const double above = run_head(head, states, targets, 0).loss;
        p->value[i] = kept - step;
        const double below = run_head(head, states, targets, 0).loss;
        p->value[i] = kept;
        EXPECT_NEAR(p->gradient[i], 0.7 * (above - below) / (2 * step), 3e-3) << p->name << " " << i;
      }
    }
  }
}

TEST(RunHead, LeavesASharedProjectionAlone) {
  Head head = some_head(1, false);
  run_head(head, floats(kRows * kWidth, 1), std::vector<int64_t>(kRows, 2), 1);
  for (const float g : head.projection->gradient) EXPECT_EQ(g, 0);
  EXPECT_EQ(head.trained().size(), 2u);
}

TEST(CrossEntropy, IsWhatItsFormulaSays) {
  std::vector<float> logits = {1, 2, 3, 0, 0, 0};
  const std::vector<int64_t> targets = {2, 1};
  const HeadScore score = cross_entropy(logits.data(), 2, 3, targets, 0);
  const double total = std::exp(1.0) + std::exp(2.0) + std::exp(3.0);
  EXPECT_NEAR(score.loss, -std::log(std::exp(3.0) / total) + std::log(3.0), 1e-6);
  EXPECT_EQ(score.correct, 1);
}

TEST(Divergence, IsWhatItsFormulaSays) {
  std::vector<float> logits = {0, 1, -1}, teacher = {0.2f, 0.5f, 0.3f};
  std::vector<double> q = {1, std::exp(1.0), std::exp(-1.0)};
  const double total = q[0] + q[1] + q[2];
  double wanted = 0;
  for (size_t i = 0; i < 3; ++i) wanted += teacher[i] * std::log(teacher[i] * total / q[i]);
  const HeadScore score = divergence(logits.data(), 1, 3, teacher, 2);
  EXPECT_NEAR(score.loss, wanted, 1e-6);
  EXPECT_EQ(score.correct, 1);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(logits[i], 2 * (q[i] / total - teacher[i]), 1e-6);
}

TEST(AdamW, TakesTheStepsOfItsAlgorithm) {
  Parameter weight("w", {1}, true);
  weight.value[0] = 2;
  AdamW optimizer({.weight_decay = 0.1, .clip = 0});
  double w = 2, m = 0, v = 0;
  Parameter* all[] = {&weight};
  for (int t = 1; t <= 4; ++t) {
    const double g = 0.3 * t - 0.8;
    weight.gradient[0] = static_cast<float>(g);
    optimizer.step(all, 0.05);
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    w = w - 0.05 * 0.1 * w -
        0.05 * (m / (1 - std::pow(0.9, t))) / (std::sqrt(v / (1 - std::pow(0.999, t))) + 1e-8);
    EXPECT_NEAR(weight.value[0], w, 1e-5);
    EXPECT_EQ(weight.gradient[0], 0);
  }
}

TEST(CosineRate, RisesAndFalls) {
  EXPECT_NEAR(cosine_rate(0, 100, 10, 2), 0.2, 1e-12);
  EXPECT_NEAR(cosine_rate(9, 100, 10, 2), 2, 1e-12);
  EXPECT_NEAR(cosine_rate(55, 100, 10, 2), 1, 1e-12);
  EXPECT_EQ(cosine_rate(100, 100, 10, 2), 0);
}

// Text in which the token two places on follows from the one now: what the heads of a random model can learn.
class TrainHeadsTest : public testing::Test {
 protected:
  TrainHeadsTest()
      : graph_(test::random_decoder({.vocabulary = 31, .layers = 1})),
        session_(runtime::Program::compile(
                     *graph_, {.entries = {{runtime::find_hidden_states(*graph_).after_final_norm->name()}}}),
                 {.threads = 1}),
        source_(session_, 0, {0}) {
    std::mt19937 random(3);
    for (int i = 0; i < 40; ++i) {
      std::vector<int64_t> text = {static_cast<int64_t>(random() % 31)};
      while (text.size() < 48) text.push_back((text.back() * 3 + 1 + (random() % 4 == 0 ? 1 : 0)) % 31);
      (i < 36 ? training_ : validation_).push_back(text);
    }
  }
  std::vector<Head> heads(bool own = false) {
    return passes::medusa_heads_to_train(*graph_, {.heads = 2, .own_projections = own});
  }
  static std::vector<float> values(std::vector<Head>& heads) {
    std::vector<float> all;
    for (Head& head : heads) {
      for (Parameter* p : head.trained()) all.insert(all.end(), p->value.begin(), p->value.end());
    }
    return all;
  }

  std::unique_ptr<Graph> graph_;
  runtime::Session session_;
  StateSource source_;
  Windows training_, validation_;
  TrainOptions options_{.epochs = 6, .batch = 4, .rate = 0.01, .warm_up = 3, .validations = 3};
};

TEST_F(TrainHeadsTest, LearnsWhatThereIsToLearn) {
  for (const bool own : {false, true}) {
    std::vector<Head> trained = heads(own);
    std::vector<HeadScore> before = score_heads(trained, source_, validation_);
    const std::vector<HeadScore> after = train_heads(trained, source_, training_, validation_, options_);
    for (size_t h = 0; h < 2; ++h) {
      EXPECT_LT(after[h].mean_loss(), before[h].mean_loss() - 0.2);
      EXPECT_GT(after[h].top1(), 0.1);
      EXPECT_EQ(after[h].rows, 4 * (48 - static_cast<int64_t>(h) - 2));
    }
    EXPECT_EQ(score_heads(trained, source_, validation_)[0].correct, after[0].correct);
  }
}

TEST_F(TrainHeadsTest, GoesOnWhereItWasInterrupted) {
  const test::TempDir dir;
  options_.epochs = 2;
  std::vector<Head> whole = heads();
  train_heads(whole, source_, training_, validation_, options_);
  TrainOptions options = options_;
  options.checkpoint = dir / "checkpoint";
  options.resume = true;
  std::vector<Head> first = heads();
  struct Stop {};
  const TrainHooks stop{.progress = [](int64_t step, int64_t) {
    if (step == 8) throw Stop();
  }};
  EXPECT_THROW(train_heads(first, source_, training_, validation_, options, stop), Stop);
  std::vector<Head> second = heads();
  int64_t steps = 0;
  train_heads(second, source_, training_, validation_, options,
              {.progress = [&](int64_t, int64_t) { ++steps; }});
  EXPECT_EQ(steps, 12);
  EXPECT_EQ(values(second), values(whole));
  options.rate = 0.02;
  EXPECT_QUERN_ERROR(train_heads(second, source_, training_, validation_, options),
                     ErrorCode::InvalidArgument, "another training");
}

TEST_F(TrainHeadsTest, KeepsTheBestState) {
  TrainOptions options = options_;
  options.epochs = 2;
  options.rate = 0.9;  // diverges
  std::vector<Head> trained = heads();
  double least = 1e9;
  const std::vector<HeadScore> scores =
      train_heads(trained, source_, training_, validation_, options,
                  {.validated = [&](const Validation& v) { least = std::min(least, v.validation[0].loss); }});
  EXPECT_EQ(scores[0].loss, least);
  EXPECT_DOUBLE_EQ(score_heads(trained, source_, validation_)[0].loss, least);
}

TEST(Cut, MakesWindows) {
  const std::vector<std::vector<int64_t>> documents = {
      std::vector<int64_t>(45, 1), std::vector<int64_t>(3, 2), std::vector<int64_t>(20, 3)};
  const Windows windows = cut(documents, 20, 5);
  ASSERT_EQ(windows.size(), 4u);
  EXPECT_EQ(windows[2].size(), 5u);
  EXPECT_EQ(windows[3], documents[2]);
}

// What is measured of heads, by a model whose heads are known: fresh ones say what the model says.
TEST(MedusaTuning, MeasuresAccuracies) {
  const auto graph = test::random_decoder({.vocabulary = 31});
  passes::PassContext context;
  passes::PassRegistry::instance()
      .create("insert-medusa-heads", {{"weights", "fresh"}, {"heads", 2}})
      ->run(*graph, context);
  runtime::Session session(runtime::Program::compile(*graph, runtime::medusa_program(*graph)),
                           {.threads = 1});
  const std::vector<std::vector<int64_t>> pieces = {test::random_tokens(30, 31, 1),
                                                    test::random_tokens(30, 31, 2)};
  MedusaMeasure options;
  options.prompt = 10;
  options.generate = 12;
  options.ranks = 31;
  const MedusaAccuracies accuracies = measure_medusa_heads(session, pieces, options);
  EXPECT_EQ(accuracies.model_positions, 2 * 11);
  EXPECT_EQ(accuracies.text_positions, 2 * 28);
  for (const auto* kind : {&accuracies.model, &accuracies.text}) {
    ASSERT_EQ(kind->size(), 2u);
    for (const std::vector<double>& rates : *kind) {
      double sum = 0;
      for (const double rate : rates) sum += rate;
      EXPECT_NEAR(sum, 1, 1e-9);
    }
  }
  // Where the model repeats its last token, a fresh head is right.
  std::vector<int64_t> said;
  int64_t same = 0;
  for (const auto& piece : pieces) {
    runtime::Sequence sequence = session.new_sequence();
    std::vector<int64_t> next(piece.begin(), piece.begin() + 10);
    int64_t before = -1;
    for (int i = 0; i < 12; ++i) {
      const auto logits = session.run(sequence, next);
      next.assign(1, std::max_element(logits.begin(), logits.end()) - logits.begin());
      same += next[0] == before ? 1 : 0;
      before = next[0];
    }
  }
  EXPECT_NEAR(accuracies.model[0][0], static_cast<double>(same) / 22, 1e-9);
}

TEST(MedusaTuning, ChoosesByCosts) {
  MedusaAccuracies accuracies;
  accuracies.model = {{0.6, 0.2, 0.1}, {0.5, 0.2, 0.1}};
  MedusaCosts costs{.runs = {{1, 1.0}, {2, 1.1}, {5, 1.4}, {65, 13.4}}, .heads = 0.1};
  EXPECT_NEAR(costs.run(3), 1.2, 1e-12);
  EXPECT_NEAR(costs.run(85), 17.4, 1e-12);
  const MedusaChoice best = choose_medusa_tree(accuracies, costs, 0, 64);
  EXPECT_EQ(best.tree.size(), 3u);
  EXPECT_NEAR(best.expected_tokens, 1 + 0.6 + 0.3 + 0.2, 1e-12);
  EXPECT_NEAR(best.expected_speedup, best.expected_tokens / 1.4, 1e-12);
  EXPECT_EQ(choose_medusa_tree(accuracies, costs, 9, 64).tree.size(), 9u);
}

}  // namespace
}  // namespace quern::calibrate::train
