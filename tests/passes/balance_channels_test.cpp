// The pass balance-channels (smooth, awq) on small random decoders, some channels of which are large.
#include <gtest/gtest.h>

#include <cmath>

#include "calibrate/samples.h"
#include "calibrate/table.h"
#include "ir/schema.h"
#include "passes/pass_manager.h"
#include "passes/quantize/channel_groups.h"
#include "passes/recipe.h"
#include "runtime/decoder/program.h"
#include "runtime/decoder/session.h"
#include "tests/passes/pass_test.h"
#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"

namespace quern::test {
namespace {

using nlohmann::json;

calibrate::Samples random_samples(unsigned seed, int64_t windows = 16) {
  std::mt19937 random(seed);
  calibrate::Samples samples{.source = "random", .digest = "d1"};
  for (int64_t i = 0; i < windows; ++i) {
    std::vector<int64_t> ids;
    for (int t = 0; t < 32; ++t) ids.push_back(static_cast<int64_t>(random() % 97));
    samples.windows.push_back(ids);
  }
  return samples;
}

std::unique_ptr<Graph> decoder(const DecoderShape& shape = {.layers = 3}) {
  std::unique_ptr<Graph> graph = DecoderBuilder(shape).build();
  Rewriter rewriter(*graph);
  rewriter.set_metadata("quern.decoder", "1");
  rewriter.commit();
  return graph;
}

// The channels that are large in every token, as large language models have them: here by their norms.
void enlarge_channels(Graph& graph) {
  Rewriter rewriter(graph);
  for (Node* node : graph.nodes()) {
    if (node->op().find("Normalization") == std::string::npos) continue;
    const size_t at = node->op().starts_with("Skip") ? 2 : 1;
    Tensor scale = node->input(at)->tensor()->cast(DType::F32);
    if (scale.size() < 24) continue;  // of heads
    for (const int64_t channel : {3, 17})
      scale.set(channel, 30.0 * scale.to_floats()[static_cast<size_t>(channel)]);
    rewriter.set_input(node, at, rewriter.add_constant(scale));
  }
  rewriter.commit();
}

struct Quantized {
  std::unique_ptr<Graph> graph;
  passes::PipelineReport report;
};

Quantized quantize(const Graph& graph, const json& weights, const calibrate::Samples* samples,
                   const calibrate::CalibrationTable* table = nullptr) {
  passes::Recipe recipe{.name = "test"};
  recipe.steps.push_back({.pass = "quantize-weights", .options = weights});
  recipe.steps.push_back({.pass = "balance-channels"});
  recipe.steps.push_back({.pass = "calibrate-weights"});
  passes::PassContext context;
  context.samples = samples;
  context.table = table;
  Quantized run{.graph = graph.clone(), .report = {}};
  run.report = passes::run_recipe(recipe, *run.graph, context);
  return run;
}

// The same graph with the floats that would have been quantized.
std::unique_ptr<Graph> with_floats(const Graph& graph) {
  std::unique_ptr<Graph> floats = graph.clone();
  Rewriter rewriter(*floats);
  for (Node* node : floats->nodes()) {
    if (node->is("QuantizeWeight", kQuernDomain)) rewriter.replace(node->output(), node->input(0));
    if (node->has_attribute("activations")) rewriter.remove_attribute(node, "activations");
  }
  rewriter.commit();
  return floats;
}

std::vector<float> logits_of(const Graph& graph) {
  std::unique_ptr<Graph> whole = graph.clone();
  passes::Recipe recipe{.name = "test", .steps = {{.pass = "materialize-weights"}}};
  passes::PassContext context;
  passes::run_recipe(recipe, *whole, context);
  runtime::Session session(runtime::Program::compile(*whole), {.threads = 1});
  std::vector<float> all;
  for (const auto& window : random_samples(9, 6).windows) {
    runtime::Sequence sequence = session.new_sequence();
    const runtime::SequenceStep step{
        .sequence = &sequence, .tokens = window, .logits = runtime::LogitsFor::All};
    session.run({&step, 1});
    for (int64_t i = 0; i < static_cast<int64_t>(window.size()); ++i) {
      const std::span<const float> row = session.logits(0, i);
      all.insert(all.end(), row.begin(), row.end());
    }
  }
  return all;
}

double squares(const std::vector<float>& a, const std::vector<float>& b = {}) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - (b.empty() ? 0.0 : double{b[i]}), 2);
  return sum;
}

class BalanceChannelsTest : public testing::TestWithParam<NamedDecoder> {};

TEST_P(BalanceChannelsTest, FoldedScalesChangeNothingInFloats) {
  const calibrate::Samples samples = random_samples(1);
  const auto graph = decoder(GetParam().shape);
  enlarge_channels(*graph);
  const std::vector<float> wanted = logits_of(*graph);
  for (const char* method : {"smooth", "awq"}) {
    const Quantized run =
        quantize(*graph, {{"weights", "int4"}, {"method", method}, {"activations", "dynamic"}}, &samples);
    ASSERT_GT(run.report.runs[1].report.changes, 0);
    EXPECT_NE(run.report.runs[1].report.notes.at(0).find("scaled channels"), std::string::npos);
    const std::vector<float> got = logits_of(*with_floats(*run.graph));
    EXPECT_LT(squares(got, wanted), 1e-8 * squares(wanted)) << method;
  }
}

std::vector<NamedDecoder> some_variations() {
  std::vector<NamedDecoder> some;
  for (const NamedDecoder& each : decoder_variations()) {
    for (const char* name : {"llama", "gpt2", "head_norm", "parallel", "without_select_rows"}) {
      if (each.name == name) some.push_back(each);
    }
  }
  return some;
}

INSTANTIATE_TEST_SUITE_P(All, BalanceChannelsTest, testing::ValuesIn(some_variations()),
                         [](const auto& info) { return info.param.name; });

TEST(BalanceChannels, FindsEveryInputWhoseMakerCanTakeScales) {
  const auto graph = decoder();
  const Quantized run = quantize(*graph, {{"weights", "int4"}}, nullptr);
  std::vector<std::pair<const Node*, std::string>> why_not;
  int64_t norms = 0, rows = 0;
  for (const passes::ChannelGroup& group : passes::find_channel_groups(*run.graph, &why_not)) {
    ++(group.kind == passes::ChannelGroup::Source::Norm ? norms : rows);
  }
  // Two norms, the values of attention and the gate of each of three layers. The last norm's reader is the
  // head, which is tied to the embedding.
  EXPECT_EQ(norms, 6);
  EXPECT_EQ(rows, 6);
  ASSERT_EQ(why_not.size(), 1U);
  EXPECT_NE(why_not[0].second.find("not its alone"), std::string::npos) << why_not[0].second;
}

TEST(BalanceChannels, ErrorsOfAModelWithOutliersShrink) {
  const calibrate::Samples samples = random_samples(1);
  const auto graph = decoder();
  enlarge_channels(*graph);
  const std::vector<float> wanted = logits_of(*graph);
  const auto error = [&](const json& weights) {
    return squares(logits_of(*quantize(*graph, weights, &samples).graph), wanted);
  };
  EXPECT_LT(error({{"weights", "int8"}, {"activations", "dynamic"}, {"method", "smooth"}}),
            0.5 * error({{"weights", "int8"}, {"activations", "dynamic"}}));
  EXPECT_LT(error({{"weights", "int4"}, {"method", "awq"}}), 0.8 * error({{"weights", "int4"}}));
}

TEST(BalanceChannels, ATableServesWithoutTheData) {
  const calibrate::Samples samples = random_samples(1);
  const auto graph = decoder();
  enlarge_channels(*graph);
  calibrate::CalibrationTable table;
  calibrate::observe(*graph, samples,
                     {.range = {0, static_cast<int64_t>(samples.windows.size())}, .threads = 1}, table);
  const std::vector<float> wanted = logits_of(*graph);
  const auto error = [&](const char* method, const char* bits, const char* activations) {
    const json weights = {{"weights", bits}, {"method", method}, {"activations", activations}};
    const Quantized run = quantize(*graph, weights, nullptr, &table);
    EXPECT_LT(squares(logits_of(*with_floats(*run.graph)), wanted), 1e-8 * squares(wanted)) << method;
    return squares(logits_of(*run.graph), wanted);
  };
  EXPECT_LT(error("smooth", "int8", "dynamic"), 0.7 * error("rtn", "int8", "dynamic"));
  EXPECT_LT(error("awq", "int4", "none"), 0.8 * error("rtn", "int4", "none"));
}

TEST(BalanceChannels, IsDoneOnce) {
  const calibrate::Samples samples = random_samples(1);
  Quantized run = quantize(*decoder(), {{"weights", "int4"}, {"method", "smooth"}}, &samples);
  passes::PassContext context;
  passes::Recipe again{.name = "test", .steps = {{.pass = "balance-channels"}}};
  EXPECT_EQ(passes::run_recipe(again, *run.graph, context).runs[0].report.changes, 0);
}

TEST(BalanceChannels, NeedsDataAndADecoder) {
  const auto graph = decoder();
  for (const char* method : {"smooth", "awq"}) {
    EXPECT_QUERN_ERROR(quantize(*graph, {{"method", method}}, nullptr), ErrorCode::InvalidArgument,
                       "--calibration-data");
  }
}

}  // namespace
}  // namespace quern::test
