// Exits of encoders in training and calibration.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "calibrate/encoder_exit_calibration.h"
#include "calibrate/encoder_exit_model.h"
#include "calibrate/graph_model.h"
#include "calibrate/train/dense_form.h"
#include "calibrate/train/row_table.h"
#include "passes/exits/trained_encoder_exits.h"
#include "passes/registry.h"
#include "tests/runtime/layers/random_encoder.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace quern::calibrate {
namespace {

using train::Activation;
using train::DenseForm;
using train::DenseLayer;
using train::Head;
using train::Parameter;

constexpr int64_t kWidth = 6, kInner = 5, kClasses = 4, kRows = 7;

std::vector<float> floats(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.6F);
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

Tensor tensor(Shape shape, unsigned seed) {
  const std::vector<float> values =
      floats(static_cast<size_t>(shape[0] * (shape.size() > 1 ? shape[1] : 1)), seed);
  return Tensor::from<float>(std::move(shape), std::span<const float>(values));
}

// Gradients against differences of the loss, through both kinds of targets and every activation.
TEST(DenseForm, HasTheGradientsOfItsLoss) {
  const std::vector<float> states = floats(kRows * kWidth, 1), teacher = floats(kRows * kClasses, 2);
  const std::vector<int64_t> targets = {3, 0, -1, 2, 1, 1, 0};
  for (const auto activation :
       {Activation::None, Activation::Tanh, Activation::Relu, Activation::Gelu, Activation::GeluTanh}) {
    for (const int64_t rank : {0, 2}) {
      for (const bool taught : {false, true}) {
        std::vector<DenseLayer> layers = {
            {.weight = tensor({kInner, kWidth}, 3), .bias = tensor({kInner}, 4), .activation = activation}};
        Head head{.name = "exit",
                  .form = std::make_unique<DenseForm>("exits.1", kWidth, layers, rank, 9),
                  .projection = std::make_shared<Parameter>("u", tensor({kClasses, kInner}, 5), true),
                  .bias = std::make_shared<Parameter>("b", tensor({kClasses}, 6), false),
                  .trains_projection = true};
        if (taught) head.teacher = 0;
        head.teacher_gives_logits = taught;
        if (rank > 0) {
          for (Parameter* p : head.form->parameters()) {
            if (p->name == "exits.1.adapter.up.weight") p->value = floats(p->size(), 7);
          }
        }
        train::run_head(head, states, targets, 0.7, teacher);
        for (Parameter* p : head.trained()) {
          const std::vector<float> gradient = p->gradient;
          for (size_t i = 0; i < p->size(); ++i) {
            const float kept = p->value[i], step = 5e-3F;
            p->value[i] = kept + step;
            const double above = train::run_head(head, states, targets, 0, teacher).loss;
            p->value[i] = kept - step;
            const double below = train::run_head(head, states, targets, 0, teacher).loss;
            p->value[i] = kept;
            EXPECT_NEAR(gradient[i], 0.7 * (above - below) / (2 * step), 8e-3) << p->name << " " << i;
          }
        }
      }
    }
  }
}

TEST(DenseForm, RefusesLayersThatDoNotFit) {
  const std::vector<DenseLayer> layers = {{.weight = tensor({kInner, kWidth + 1}, 3), .bias = {}}};
  EXPECT_QUERN_ERROR(DenseForm("exits.1", kWidth, layers, 0, 0), ErrorCode::InvalidArgument,
                     "has 6 features");
}

std::vector<std::vector<int64_t>> texts_of(int64_t count, unsigned seed = 3) {
  std::mt19937 random(seed);
  std::vector<std::vector<int64_t>> texts;
  for (int64_t i = 0; i < count; ++i) {
    std::vector<int64_t>& text = texts.emplace_back();
    const size_t length = i % 5 == 4 ? 6 : 9;
    for (size_t t = 0; t < length; ++t) text.push_back(static_cast<int64_t>(random() % 61));
  }
  return texts;
}

std::unique_ptr<Graph> with_exits(const nlohmann::json& options) {
  auto graph = test::random_encoder();
  passes::PassContext context;
  passes::PassRegistry::instance().create("insert-exit-heads", options)->run(*graph, context);
  return graph;
}

// The heads' loss falls, and what is written is what insert-exit-heads reads: in the graph the exits say what
// the training measured.
TEST(EncoderExits, LearnWhatTheFinalLayerSays) {
  const auto graph = test::random_encoder();
  passes::EncoderExitHeads exits =
      passes::encoder_exits_to_train(*graph, {.layers = {1, 3}, .rank = 3, .from_final_layer = true});
  ASSERT_EQ(exits.sources, (std::vector<std::string>{"exit_pooled.1", "exit_pooled.3", "logits"}));
  const auto ids = texts_of(120);
  const Texts texts(ids.begin(), ids.end());
  std::vector<train::RowTable::Rows> sources;
  for (TextRows& rows : rows_of_texts(*exits.graph, texts, exits.sources))
    sources.push_back({rows.width, rows.values});
  train::RowTable source(sources, {});
  train::Windows windows, validation;
  for (int64_t row = 0; row < 120; ++row) (row % 6 == 5 ? validation : windows).push_back({row});
  const auto before = train::score_heads(exits.heads, source, validation);
  const auto after = train::train_heads(exits.heads, source, windows, validation,
                                        {.epochs = 20, .batch = 10, .rate = 1e-2, .warm_up = 2});
  for (size_t h = 0; h < 2; ++h) EXPECT_LT(after[h].mean_loss(), 0.7 * before[h].mean_loss()) << h;

  const test::TempDir dir;
  const std::string path = (dir / "exits.safetensors").string();
  passes::write_encoder_exit_heads(path, exits.heads);
  const auto trained = with_exits({{"weights", path}, {"head", "adapter"}});
  Texts held_back;
  for (const auto& row : validation) held_back.push_back(ids[static_cast<size_t>(row[0])]);
  for (const int64_t layer : {1, 3}) {
    EncoderExitEvaluator evaluator(*trained, {.layers = {layer}}, held_back);
    EXPECT_DOUBLE_EQ(evaluator.evaluate(0).agreement, after[layer == 1 ? 0 : 1].top1());
  }
}

TEST(EncoderExits, LearnLabels) {
  const auto graph = test::random_encoder();
  passes::EncoderExitHeads exits = passes::encoder_exits_to_train(*graph, {.layers = {2}});
  const auto ids = texts_of(100);
  const Texts texts(ids.begin(), ids.end());
  // Whether the first token is one of the first half.
  std::vector<int64_t> labels;
  for (const auto& text : ids) labels.push_back(text[0] < 30 ? 1 : 0);
  std::vector<train::RowTable::Rows> sources;
  for (TextRows& rows : rows_of_texts(*exits.graph, texts, exits.sources))
    sources.push_back({rows.width, rows.values});
  train::RowTable source(sources, labels);
  train::Windows windows;
  for (int64_t row = 0; row < 100; ++row) windows.push_back({row});
  const auto after = train::train_heads(exits.heads, source, windows, windows,
                                        {.epochs = 30, .batch = 10, .rate = 1e-2, .warm_up = 2});
  EXPECT_GT(after[0].top1(), 0.9);
}

TEST(EncoderExits, RefusesLayersThatAreNone) {
  const auto graph = test::random_encoder();
  EXPECT_QUERN_ERROR(passes::encoder_exits_to_train(*graph, {.layers = {4}}), ErrorCode::InvalidArgument,
                     "a model of 4 layers");
}

// What the evaluator foretells of one run of the whole model is what the runtime then does.
TEST(EncoderExitEvaluator, ForetellsWhatTheRuntimeDoes) {
  const std::shared_ptr<const Graph> graph = with_exits({{"layers", "1,3"}});
  const auto ids = texts_of(60);
  const Texts texts(ids.begin(), ids.end());
  std::vector<int64_t> labels(60);
  std::iota(labels.begin(), labels.end(), 0);
  for (int64_t& label : labels) label %= 5;
  for (const auto confidence : {runtime::ExitConfidence::Margin, runtime::ExitConfidence::Entropy}) {
    const EncoderExitEvaluator evaluator(*graph, {.confidence = confidence}, texts, labels);
    for (const double threshold : {0.0, 0.3, 0.6, 2.0}) {
      const ExitQuality quality = evaluator.evaluate(threshold);
      runtime::EarlyExitEncoder encoder(graph, {.confidence = confidence, .threshold = threshold});
      const auto model = make_encoder_exit_model(encoder);
      const auto whole = make_graph_model(graph);
      model->expect(texts);
      int64_t right = 0, agreeing = 0;
      for (size_t i = 0; i < texts.size(); ++i) {
        model->start(texts[i]);
        whole->start(texts[i]);
        const float *logits = model->logits(0, 1)[0], *all = whole->logits(0, 1)[0];
        const int64_t top = std::max_element(logits, logits + 5) - logits;
        right += top == labels[i] ? 1 : 0;
        agreeing += top == std::max_element(all, all + 5) - all ? 1 : 0;
      }
      EXPECT_EQ(quality.exits.tokens, encoder.statistics().tokens);
      EXPECT_DOUBLE_EQ(quality.agreement, static_cast<double>(agreeing) / 60);
      EXPECT_DOUBLE_EQ(quality.accuracy.value(), static_cast<double>(right) / 60);
      EXPECT_DOUBLE_EQ(std::accumulate(quality.losses.begin(), quality.losses.end(), 0.0), 60.0 - agreeing);
    }
  }
}

TEST(EncoderExitEvaluator, ThresholdsAreFoundAsThoseOfDecoders) {
  const std::shared_ptr<const Graph> graph = with_exits({{"layers", "1,3"}});
  const auto ids = texts_of(200);
  const EncoderExitEvaluator evaluator(*graph, {}, Texts(ids.begin(), ids.end()));
  const ThresholdResult result = find_exit_threshold(
      [&](double threshold) { return evaluator.evaluate(threshold); }, {.tolerance = 0.2, .delta = 0.1});
  ASSERT_TRUE(result.threshold.has_value());
  EXPECT_FALSE(result.steps.back().accepted);
  EXPECT_FALSE(result.steps.front().accuracy.has_value());
  EXPECT_LE(1 - evaluator.evaluate(*result.threshold).agreement, 0.2);
}

}  // namespace
}  // namespace quern::calibrate
