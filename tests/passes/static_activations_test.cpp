// The pass static-activations: one scale for all tokens, from samples or from a table.
#include <gtest/gtest.h>

#include <cmath>

#include "calibrate/samples.h"
#include "calibrate/table.h"
#include "ir/activation_scheme.h"
#include "ir/schema.h"
#include "passes/pass_manager.h"
#include "passes/recipe.h"
#include "runtime/decoder/program.h"
#include "runtime/decoder/session.h"
#include "tests/passes/pass_test.h"
#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"

namespace quern::test {
namespace {

using nlohmann::json;

calibrate::Samples random_samples(unsigned seed, int64_t windows = 8) {
  std::mt19937 random(seed);
  calibrate::Samples samples{.source = "random", .digest = "d1"};
  for (int64_t i = 0; i < windows; ++i) {
    std::vector<int64_t> ids;
    for (int t = 0; t < 32; ++t) ids.push_back(static_cast<int64_t>(random() % 97));
    samples.windows.push_back(ids);
  }
  return samples;
}

std::unique_ptr<Graph> decoder() {
  std::unique_ptr<Graph> graph = DecoderBuilder({.layers = 2}).build();
  Rewriter rewriter(*graph);
  rewriter.set_metadata("quern.decoder", "1");
  rewriter.commit();
  return graph;
}

std::unique_ptr<Graph> quantize(const Graph& graph, const json& weights, const calibrate::Samples* samples,
                                const calibrate::CalibrationTable* table = nullptr) {
  passes::Recipe recipe{.name = "test"};
  recipe.steps.push_back({.pass = "quantize-weights", .options = weights});
  for (const char* pass : {"balance-channels", "static-activations", "calibrate-weights"})
    recipe.steps.push_back({.pass = pass});
  passes::PassContext context;
  context.samples = samples;
  context.table = table;
  auto made = graph.clone();
  passes::run_recipe(recipe, *made, context);
  return made;
}

calibrate::CalibrationTable table_of(const Graph& graph, const calibrate::Samples& samples) {
  calibrate::CalibrationTable table;
  calibrate::observe(graph, samples,
                     {.range = {0, static_cast<int64_t>(samples.windows.size())}, .threads = 1}, table);
  return table;
}

std::vector<ActivationScheme> schemes_of(const Graph& graph) {
  std::vector<ActivationScheme> schemes;
  for (const Node* node : graph.nodes()) {
    if (node->is("Linear", kQuernDomain)) schemes.push_back(activation_scheme(*node));
  }
  return schemes;
}

std::vector<float> logits_of(const Graph& graph) {
  std::unique_ptr<Graph> whole = graph.clone();
  passes::Recipe recipe{.name = "test", .steps = {{.pass = "materialize-weights"}}};
  passes::PassContext context;
  passes::run_recipe(recipe, *whole, context);
  runtime::Session session(runtime::Program::compile(*whole), {.threads = 1});
  std::vector<float> all;
  for (const auto& window : random_samples(9, 4).windows) {
    runtime::Sequence sequence = session.new_sequence();
    const auto row = session.run(sequence, window);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

double relative_error(const std::vector<float>& a, const std::vector<float>& wanted) {
  double noise = 0, signal = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    noise += std::pow(double{a[i]} - double{wanted[i]}, 2);
    signal += std::pow(double{wanted[i]}, 2);
  }
  return noise / signal;
}

TEST(StaticActivations, ScalesAreThoseOfTheExtremes) {
  const calibrate::Samples samples = random_samples(1);
  const auto graph = decoder();
  const calibrate::CalibrationTable table = table_of(*graph, samples);
  for (const char* codes : {"int8", "uint8", "int8-asymmetric", "uint8-asymmetric"}) {
    const json weights = {{"weights", "int8"}, {"activations", "static"}, {"activation-codes", codes}};
    const auto by_table = quantize(*graph, weights, nullptr, &table);
    EXPECT_EQ(schemes_of(*by_table), schemes_of(*quantize(*graph, weights, &samples)))
        << "a table is as good";
    int64_t seen = 0;
    for (const Node* node : by_table->nodes()) {
      if (!node->is("Linear", kQuernDomain)) continue;
      const ActivationScheme scheme = activation_scheme(*node);
      const calibrate::Observer& observed = table.tensors.at(node->input(0)->name());
      ++seen;
      ASSERT_EQ(scheme.kind, ActivationScheme::Kind::Static);
      const bool symmetric = !std::string(codes).ends_with("asymmetric");
      EXPECT_EQ(scheme.highest - scheme.lowest, symmetric ? 254 : 255);
      const float step = scheme.scale;
      EXPECT_GE(step * static_cast<float>(scheme.highest) + step, observed.max());
      EXPECT_LE(step * static_cast<float>(scheme.lowest) - step, observed.min());
      if (symmetric) {
        EXPECT_FLOAT_EQ(step, std::max(observed.max(), -observed.min()) / 127.0F);
      } else {
        EXPECT_FLOAT_EQ(step, (std::max(0.0F, observed.max()) - std::min(0.0F, observed.min())) / 255.0F);
      }
    }
    EXPECT_GT(seen, 8);
  }
}

TEST(StaticActivations, AnOutlierIsCutOffWhereAsked) {
  const calibrate::Samples samples = random_samples(1);
  const auto graph = decoder();
  const auto all = schemes_of(*quantize(*graph, {{"activations", "static"}}, &samples));
  for (const char* clip : {"percentile:99", "mse", "kl"}) {
    for (const char* codes : {"int8", "uint8-asymmetric"}) {
      const json weights = {
          {"activations", "static"}, {"activation-clip", clip}, {"activation-codes", codes}};
      const auto cut = schemes_of(*quantize(*graph, weights, &samples));
      ASSERT_EQ(cut.size(), all.size());
      double before = 0, after = 0;
      for (size_t i = 0; i < cut.size(); ++i) {
        before += static_cast<double>(all[i].scale) * 254;
        after += static_cast<double>(cut[i].scale) * static_cast<double>(cut[i].highest - cut[i].lowest);
      }
      EXPECT_LT(after, before) << clip << ", " << codes;
    }
  }
}

TEST(StaticActivations, TheModelKeepsItsLogits) {
  const calibrate::Samples samples = random_samples(1);
  const auto graph = decoder();
  const std::vector<float> wanted = logits_of(*graph);
  for (const char* bits : {"int8", "int4"}) {
    const double weights_alone =
        relative_error(logits_of(*quantize(*graph, {{"weights", bits}}, &samples)), wanted);
    for (const char* activations : {"dynamic", "dynamic-token", "dynamic-tensor", "static"}) {
      for (const char* method : {"rtn", "smooth", "awq", "gptq"}) {
        const json weights = {{"weights", bits}, {"activations", activations}, {"method", method}};
        const double error = relative_error(logits_of(*quantize(*graph, weights, &samples)), wanted);
        EXPECT_LT(error, 1.5 * weights_alone + 2e-2) << bits << ", " << activations << ", " << method;
        EXPECT_GT(error, 0);
      }
    }
  }
}

TEST(StaticActivations, BadInput) {
  const auto graph = decoder();
  const json weights = {{"activations", "static"}};
  EXPECT_QUERN_ERROR(quantize(*graph, weights, nullptr), ErrorCode::InvalidArgument, "--calibration-data");
  EXPECT_QUERN_ERROR(quantize(*graph, {{"activations", "static"}, {"activation-clip", "some"}}, nullptr),
                     ErrorCode::InvalidArgument, "some");
  calibrate::CalibrationTable other;
  EXPECT_QUERN_ERROR(quantize(*graph, weights, nullptr, &other), ErrorCode::InvalidArgument,
                     "has nothing about");
  // A table knows nothing of channels that were scaled since.
  const calibrate::Samples samples = random_samples(1);
  const calibrate::CalibrationTable table = table_of(*graph, samples);
  EXPECT_QUERN_ERROR(quantize(*graph, {{"activations", "static"}, {"method", "smooth"}}, nullptr, &table),
                     ErrorCode::InvalidArgument, "--calibration-data");
  // Nothing runs whose range nobody has seen.
  auto unseen = graph->clone();
  passes::Recipe recipe{
      .name = "test",
      .steps = {{.pass = "quantize-weights", .options = weights}, {.pass = "materialize-weights"}}};
  passes::PassContext context;
  passes::run_recipe(recipe, *unseen, context);
  EXPECT_QUERN_ERROR(runtime::Program::compile(*unseen), ErrorCode::InvalidArgument, "static-activations");
}

// What no sample reached, a branch of experts say, is rounded by what each token is.
TEST(StaticActivations, InputsThatNoSampleReachedAreRoundedPerToken) {
  const calibrate::Samples samples = random_samples(1);
  const auto graph = decoder();
  calibrate::CalibrationTable table = table_of(*graph, samples);
  const std::string name = table.tensors.begin()->first;
  table.tensors[name] = calibrate::Observer();
  const auto made = quantize(*graph, {{"activations", "static"}}, nullptr, &table);
  for (const Node* node : made->nodes()) {
    if (!node->is("Linear", kQuernDomain)) continue;
    const bool unseen = node->input(0)->name() == name;
    EXPECT_EQ(activation_scheme(*node).kind,
              unseen ? ActivationScheme::Kind::Token : ActivationScheme::Kind::Static);
  }
}

}  // namespace
}  // namespace quern::test
