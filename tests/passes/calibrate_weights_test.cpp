// The pass calibrate-weights on small random decoders.
#include <gtest/gtest.h>

#include <cmath>

#include "calibrate/samples.h"
#include "ir/schema.h"
#include "passes/pass_manager.h"
#include "passes/quantize/layer_error.h"
#include "passes/recipe.h"
#include "passes/weights/weight_sites.h"
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
    // Some tokens are much more frequent than others, as in texts.
    for (int t = 0; t < 32; ++t) ids.push_back(static_cast<int64_t>(random() % 97 * (random() % 97) / 97));
    samples.windows.push_back(ids);
  }
  return samples;
}

std::unique_ptr<Graph> decoder(bool tied = true) {
  std::unique_ptr<Graph> graph = DecoderBuilder({.layers = 3, .tied = tied}).build();
  Rewriter rewriter(*graph);
  rewriter.set_metadata("quern.decoder", "1");
  rewriter.commit();
  return graph;
}

passes::PipelineReport quantize(Graph& graph, const json& weights, const calibrate::Samples* samples,
                                const json& calibration = json::object()) {
  passes::Recipe recipe{.name = "test"};
  recipe.steps.push_back({.pass = "quantize-weights", .options = weights});
  recipe.steps.push_back({.pass = "calibrate-weights", .options = calibration});
  passes::PassContext context;
  context.samples = samples;
  return passes::run_recipe(recipe, graph, context);
}

std::vector<float> logits_of(const Graph& graph, const calibrate::Samples& samples) {
  std::unique_ptr<Graph> whole = graph.clone();
  passes::Recipe recipe{.name = "test", .steps = {{.pass = "materialize-weights"}}};
  passes::PassContext context;
  passes::run_recipe(recipe, *whole, context);
  runtime::Session session(runtime::Program::compile(*whole), {.threads = 1});
  std::vector<float> all;
  for (const auto& window : samples.windows) {
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

double squared_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - double{b[i]}, 2);
  return sum;
}

TEST(CalibrateWeights, TheWholeModelIsCloserOnDataItHasNotSeen) {
  const calibrate::Samples seen = random_samples(1);
  const calibrate::Samples unseen = random_samples(2, 6);
  for (const bool tied : {true, false}) {
    const std::vector<float> want = logits_of(*decoder(tied), unseen);
    const auto distance = [&](const json& weights, const calibrate::Samples* samples, double propagate) {
      const std::unique_ptr<Graph> graph = decoder(tied);
      quantize(*graph, weights, samples, {{"propagate", propagate}});
      return squared_distance(logits_of(*graph, unseen), want);
    };
    const json rtn = {{"weights", "int4"}, {"group-size", 16}};
    const json gptq = {{"weights", "int4"}, {"group-size", 16}, {"method", "gptq"}};
    const double nearest = distance(rtn, nullptr, 0);
    // Random weights have little for it to use, unlike trained ones (tests/cli/calibrate_test.cpp).
    EXPECT_LT(distance(gptq, &seen, 0), nearest * 0.97);
    EXPECT_LT(distance(gptq, &seen, 0.5), nearest * 0.97);
  }
}

// What is left of the outputs' error, by the squares of the weights' rounding on inputs of unequal size.
TEST(CalibrateWeights, ClippingByTheErrorOfOutputsTakesNearestCodesOfNarrowerRanges) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  constexpr int64_t kRows = 24, kCols = 64;
  std::vector<float> weight(kRows * kCols);
  for (float& w : weight) w = normal(random) * (random() % 16 == 0 ? 3.0F : 1.0F);
  calibrate::SquareMatrix moments(kCols);
  for (int sample = 0; sample < 200; ++sample) {
    std::vector<float> x(kCols);
    const float shared = normal(random);
    for (size_t i = 0; i < x.size(); ++i) x[i] = (normal(random) + shared) * (i % 8 == 0 ? 6.0F : 1.0F);
    for (int64_t i = 0; i < kCols; ++i) {
      for (int64_t j = 0; j < kCols; ++j)
        moments.at(i, j) += double{x[static_cast<size_t>(i)]} * double{x[static_cast<size_t>(j)]};
    }
  }
  for (const int bits : {4, 3}) {
    QuantizeOptions options;
    options.scheme = {.code = DType::I4,
                      .symmetric = true,
                      .granularity = QuantScheme::Granularity::Group,
                      .axis = 1,
                      .group_size = 16,
                      .bits = bits == 4 ? 0 : bits};
    const auto error_of = [&](const passes::LayerErrorOptions& how) {
      const auto result = passes::minimize_layer_error(weight, kCols, moments, options, how);
      result.weight.check();
      EXPECT_LE(result.after, result.before);
      const Tensor numbers = dequantize(result.weight);
      const int64_t most = (1 << (bits - 1)) - 1;
      for (int64_t i = 0; how.clips_alone && i < numbers.size(); ++i) {
        const double scale = result.weight.scales.at(i / 16);
        const double code =
            std::clamp(std::nearbyint(weight[static_cast<size_t>(i)] / scale), -1.0 - most, 0.0 + most);
        EXPECT_NEAR(numbers.at(i), code * scale, std::abs(scale) * 1e-3) << i;
      }
      return result.after;
    };
    const double clipped = error_of({.clips_alone = true});
    EXPECT_LT(clipped, passes::minimize_layer_error(weight, kCols, moments, options).before * 0.95);
    EXPECT_GT(clipped, error_of({}));  // GPTQ chooses the codes, too
  }
}

TEST(CalibrateWeights, EveryWeightBecomesCodesUnderItsName) {
  const calibrate::Samples samples = random_samples(1, 4);
  const std::unique_ptr<Graph> graph = decoder();
  std::vector<std::string> names;
  for (const passes::WeightSite& site : passes::find_weight_sites(*graph)) names.push_back(site.name);
  const passes::PipelineReport report = quantize(*graph, {{"weights", "int3"}, {"method", "gptq"}}, &samples);
  std::vector<std::string> after;
  for (const passes::WeightSite& site : passes::find_weight_sites(*graph)) {
    ASSERT_NE(site.value->quantized(), nullptr) << site.name;
    EXPECT_EQ(to_string(site.value->quantized()->scheme), "int3 symmetric per group of 32");
    after.push_back(site.name);
  }
  EXPECT_EQ(after, names);
  EXPECT_EQ(report.runs.back().report.changes, static_cast<int64_t>(names.size()));
  // Again: nothing is left to do.
  passes::Recipe again{.name = "test", .steps = {{.pass = "calibrate-weights"}}};
  passes::PassContext context;
  EXPECT_EQ(passes::run_recipe(again, *graph, context).changes(), 0);
}

TEST(CalibrateWeights, StagesAndMemoryAreAsAskedFor) {
  const calibrate::Samples samples = random_samples(1, 4);
  const auto bytes_of = [&](const json& options) {
    const std::unique_ptr<Graph> graph = decoder();
    quantize(*graph, {{"weights", "int4"}, {"method", "gptq"}}, &samples, options);
    std::string bytes;
    for (const Value* constant : graph->constants()) {
      if (const QuantizedTensor* weight = constant->quantized())
        bytes.append(reinterpret_cast<const char*>(weight->codes.bytes()),
                     static_cast<size_t>(weight->codes.byte_size()));
    }
    return bytes;
  };
  const std::string all = bytes_of(json::object());
  EXPECT_EQ(bytes_of(json::object()), all);
  EXPECT_EQ(bytes_of({{"stages", 1000}}), all);
  EXPECT_NE(bytes_of({{"stages", 1}}), all);
  EXPECT_EQ(bytes_of({{"moment-memory", 1}}).size(), all.size());
}

TEST(CalibrateWeights, ImportanceBecomesAnInput) {
  const calibrate::Samples samples = random_samples(1, 4);
  const std::unique_ptr<Graph> graph = decoder(false);
  quantize(*graph, {{"weights", "int4"}, {"method", "lsq"}}, &samples);
  int weighted = 0;
  for (const Node* node : graph->nodes()) {
    if (!node->is("QuantizeWeight", kQuernDomain)) continue;
    EXPECT_FALSE(node->has_attribute("calibrate"));
    const bool is_table = node->output()->uses().front().node->is("Embedding", kQuernDomain);
    EXPECT_EQ(node->input(1) == nullptr, is_table);
    if (is_table) continue;
    ++weighted;
    EXPECT_EQ(node->input(1)->tensor()->size(), as_constant(node->input(0)->shape())->at(1));
  }
  EXPECT_GT(weighted, 0);
}

TEST(CalibrateWeights, SaysWhatIsMissingOrWrong) {
  calibrate::Samples samples = random_samples(1, 2);
  const json gptq = {{"weights", "int4"}, {"method", "gptq"}};
  EXPECT_QUERN_ERROR(quantize(*decoder(), gptq, nullptr), ErrorCode::InvalidArgument, "--calibration-data");
  EXPECT_QUERN_ERROR(quantize(*decoder(), gptq, &samples, {{"data", "d2"}}), ErrorCode::InvalidArgument, "d2",
                     "d1");
  samples.windows[1][3] = 97;
  EXPECT_QUERN_ERROR(quantize(*decoder(), gptq, &samples), ErrorCode::BadData, "97");
  Graph plain;
  Rewriter rewriter(plain);
  Value* x = rewriter.add_input("x", {DType::F32, SymShape{Dim::symbol("n"), Dim(32)}});
  Value* w = rewriter.add_constant(Tensor::zeros(DType::F32, {16, 32}), "w");
  rewriter.add_output(
      rewriter.add_node({.op = "Linear", .domain = std::string(kQuernDomain), .inputs = {x, w}})->output(),
      "y");
  rewriter.commit();
  EXPECT_QUERN_ERROR(quantize(plain, gptq, &samples), ErrorCode::Unsupported,
                     "nothing that token ids can fill", ".npz");
}

TEST(CalibrateWeights, InfiniteActivationsAreNamed) {
  const calibrate::Samples samples = random_samples(1, 2);
  const std::unique_ptr<Graph> graph = decoder(false);
  Value* table = graph->find_value("embed_tokens");
  ASSERT_NE(table, nullptr);
  Tensor broken = *table->tensor();
  broken.set(0, INFINITY);
  Rewriter rewriter(*graph);
  rewriter.set_constant(table, broken);
  rewriter.commit();
  EXPECT_QUERN_ERROR(
      quantize(*graph, {{"weights", "int4"}, {"method", "gptq"}, {"embeddings", "keep"}}, &samples),
      ErrorCode::BadData, "activation '");
}

}  // namespace
}  // namespace quern::test
