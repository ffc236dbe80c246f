// Exit heads in training: gradients, and that they learn.
#include <gtest/gtest.h>

#include <random>

#include "calibrate/train/exit_form.h"
#include "calibrate/train/trainer.h"
#include "formats/safetensors/safetensors.h"
#include "passes/exits/trained_exits.h"
#include "passes/registry.h"
#include "runtime/layers/blocks.h"
#include "tests/runtime/decoder/random_decoder.h"
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

// Gradients against differences of the loss.
TEST(ExitForm, HasTheGradientsOfItsLoss) {
  const std::vector<float> states = floats(kRows * kWidth, 1), teacher = floats(kRows * kWidth, 2);
  const std::vector<int64_t> targets = {3, 0, -1, 10, 3};
  for (const bool layer_norm : {false, true}) {
    for (const int64_t rank : {0, 3}) {
      for (const bool taught : {false, true}) {
        const Tensor weight = Tensor::from<float>({kWidth}, floats(kWidth, 3));
        const Tensor bias = Tensor::from<float>({kWidth}, floats(kWidth, 4));
        Head head{
            .name = "exit",
            .form = std::make_unique<ExitForm>("exits.1", weight, layer_norm ? &bias : nullptr,
                                               ExitForm::Options{.layer_norm = layer_norm, .rank = rank}),
            .projection = std::make_shared<Parameter>("u", Shape{kVocabulary, kWidth}, true)};
        head.projection->value = floats(head.projection->size(), 5);
        if (taught) head.teacher = 0;
        unsigned seed = 20;
        for (Parameter* p : head.form->parameters()) p->value = floats(p->size(), seed++);
        run_head(head, states, targets, 0.7, teacher);
        for (Parameter* p : head.trained()) {
          for (size_t i = 0; i < p->size(); ++i) {
            const float kept = p->value[i], step = 1e-2f;
            p->value[i] = kept + step;
            const double above = run_head(head, states, targets, 0, teacher).loss;
            p->value[i] = kept - step;
            const double below = run_head(head, states, targets, 0, teacher).loss;
            p->value[i] = kept;
            EXPECT_NEAR(p->gradient[i], 0.7 * (above - below) / (2 * step), 5e-3) << p->name << " " << i;
          }
        }
      }
    }
  }
}

// On a model's own streams: the divergence from the final layer falls, and what is written is what
// insert-exit-heads reads.
TEST(ExitHeads, LearnWhatTheFinalLayerSays) {
  const auto graph = test::random_decoder({.layers = 3});
  passes::ExitHeads exits =
      passes::exit_heads_to_train(*graph, {.layers = {1, 2}, .rank = 8, .from_final_layer = true});
  ASSERT_EQ(exits.sources.size(), 3u);
  runtime::Session session(runtime::Program::compile(*graph, {.entries = {exits.sources}}), {.threads = 1});
  StateSource source(session, 0, {0, 1, 2});
  Windows windows, validation;
  for (unsigned i = 0; i < 24; ++i) windows.push_back(test::random_tokens(24, 97, i));
  for (unsigned i = 100; i < 104; ++i) validation.push_back(test::random_tokens(24, 97, i));
  const std::vector<HeadScore> before = score_heads(exits.heads, source, validation);
  const std::vector<HeadScore> after = train_heads(exits.heads, source, windows, validation,
                                                   {.epochs = 6, .batch = 4, .rate = 1e-2, .warm_up = 2});
  for (size_t h = 0; h < 2; ++h) EXPECT_LT(after[h].mean_loss(), 0.9 * before[h].mean_loss()) << h;
  const test::TempDir dir;
  const std::string path = (dir / "exits.safetensors").string();
  passes::write_exit_heads(path, exits.heads);
  const auto pass = passes::PassRegistry::instance().create(
      "insert-exit-heads", nlohmann::json{{"weights", path}, {"head", "adapter"}});
  passes::PassContext context;
  EXPECT_EQ(pass->run(*graph, context).changes, 2);
  EXPECT_EQ(runtime::exits_of(*graph), (std::vector<int64_t>{1, 2}));
}

}  // namespace
}  // namespace quern::calibrate::train
