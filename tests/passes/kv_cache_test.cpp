// The pass kv-cache: how a decoder's sessions keep keys and values, and the scales of the keys' channels.
#include <gtest/gtest.h>

#include <cmath>

#include "calibrate/samples.h"
#include "ir/schema.h"
#include "passes/pass_manager.h"
#include "passes/quantize/kv_cache.h"
#include "passes/recipe.h"
#include "runtime/decoder/program.h"
#include "runtime/decoder/session.h"
#include "tests/passes/pass_test.h"
#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"

namespace quern::test {
namespace {

std::unique_ptr<Graph> decoder() {
  std::unique_ptr<Graph> graph = DecoderBuilder({.layers = 2, .bias = true}).build();
  Rewriter rewriter(*graph);
  rewriter.set_metadata("quern.decoder", "1");
  rewriter.commit();
  return graph;
}

// As in models whose biases of keys are large: one channel of each head stands out in every token.
std::unique_ptr<Graph> decoder_with_outliers() {
  std::unique_ptr<Graph> graph = decoder();
  for (const Node* node : graph->nodes()) {
    if (!node->is("CachedAttention", kQuernDomain)) continue;
    const Value* k = node->input(1);
    while (!k->producer()->is("Linear", kQuernDomain)) k = k->producer()->input(0);
    Value* bias = graph->find_value(k->producer()->input(2)->name());
    Tensor larger = bias->tensor()->cast(DType::F32);
    for (int64_t i = 3; i < larger.dim(0); i += node->int_attribute("head_size", 1)) larger.set(i, 20.0);
    Rewriter rewriter(*graph);
    rewriter.set_constant(bias, larger);
    rewriter.commit();
  }
  return graph;
}

passes::PassReport choose(Graph& graph, const std::string& kv, const calibrate::Samples* samples = nullptr) {
  passes::PassContext context;
  context.samples = samples;
  passes::Recipe recipe{.name = "test", .steps = {{.pass = "kv-cache", .options = {{"kv", kv}}}}};
  return passes::run_recipe(recipe, graph, context).runs.back().report;
}

double distance(const Graph& a, const Graph& b) {
  runtime::Session one(runtime::Program::compile(a), {.threads = 1});
  runtime::Session two(runtime::Program::compile(b), {.threads = 1});
  double sum = 0;
  for (unsigned seed = 1; seed <= 8; ++seed) {
    const std::vector<int64_t> tokens = random_tokens(40, 97, seed);
    runtime::Sequence x = one.new_sequence(), y = two.new_sequence();
    const auto left = one.run(x, tokens), right = two.run(y, tokens);
    for (size_t i = 0; i < left.size(); ++i) sum += std::pow(double{left[i]} - double{right[i]}, 2);
  }
  return sum;
}

TEST(KvCache, IsTheDefaultOfSessions) {
  const auto graph = decoder();
  EXPECT_EQ(*runtime::Session(runtime::Program::compile(*graph)).options().cache_dtype, DType::F32);
  for (const auto& [kv, dtype] : {std::pair{"fp16", DType::F16}, {"int8", DType::I8}, {"int4", DType::I4}}) {
    const auto changed = graph->clone();
    EXPECT_GT(choose(*changed, kv).changes, 0);
    EXPECT_EQ(choose(*changed, kv).changes, 0) << "a second time";
    const auto program = runtime::Program::compile(*changed);
    EXPECT_EQ(*runtime::Session(program).options().cache_dtype, dtype);
    EXPECT_EQ(*runtime::Session(program, {.cache_dtype = DType::F32}).options().cache_dtype, DType::F32);
  }
  EXPECT_EQ(choose(*graph->clone(), "fp32").changes, 0);
}

TEST(KvCache, ScalesOfChannelsContainOutliers) {
  const auto graph = decoder_with_outliers();
  for (const char* kv : {"int8", "int4"}) {
    const auto scaled = graph->clone();
    choose(*scaled, kv);
    const auto plain = graph->clone();
    Rewriter rewriter(*plain);
    rewriter.set_metadata("cache", std::string(to_string(passes::KvCachePass::dtype_of(kv))));
    rewriter.commit();
    const double with = distance(*graph, *scaled), without = distance(*graph, *plain);
    EXPECT_LT(with, 0.7 * without) << kv;
    EXPECT_GT(with, 0);
  }
}

TEST(KvCache, TakesScalesFromSamplesWhereThereAreSome) {
  const auto by_samples = decoder_with_outliers(), at_random = by_samples->clone();
  calibrate::Samples samples{.source = "random", .digest = "d1"};
  samples.windows = {std::vector<int64_t>(30, 5)};
  choose(*by_samples, "int8", &samples);
  choose(*at_random, "int8");
  const auto scales_of = [](const Graph& graph) {
    for (const Node* node : graph.nodes()) {
      if (node->is("CachedAttention", kQuernDomain)) return node->input(5)->tensor()->to_floats();
    }
    return std::vector<float>();
  };
  const std::vector<float> a = scales_of(*by_samples), b = scales_of(*at_random);
  EXPECT_NE(a, b);
  for (const auto& scales : {a, b}) {
    EXPECT_GT(scales[3], 4 * scales[4]) << "the outlier";
    for (const float scale : scales) EXPECT_GT(scale, 0);
  }
}

TEST(KvCache, IsForDecoders) {
  Graph graph;
  EXPECT_QUERN_ERROR(choose(graph, "int8"), ErrorCode::InvalidArgument, "decoder");
  const auto broken = decoder();
  Rewriter rewriter(*broken);
  rewriter.set_metadata("cache", "f7");
  rewriter.commit();
  EXPECT_QUERN_ERROR(runtime::Program::compile(*broken), ErrorCode::InvalidModel, "f7");
}

}  // namespace
}  // namespace quern::test
