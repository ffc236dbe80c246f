#include "calibrate/features.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ir/rewriter.h"
#include "tests/support/expect_error.h"

namespace quern::calibrate {
namespace {

// Looks up rows of two features in a table of four tokens.
std::unique_ptr<Graph> encoder(std::vector<float> table, const std::string& output = "last_hidden_state") {
  auto graph = std::make_unique<Graph>("encoder");
  Rewriter rewriter(*graph);
  Value* ids = rewriter.add_input(
      "input_ids", {.dtype = DType::I64, .shape = SymShape{Dim::symbol("batch"), Dim::symbol("tokens")}});
  Value* rows = rewriter.add_constant(Tensor::from<float>({4, 2}, std::span<const float>(table)), "table");
  rewriter.add_output(rewriter.add_node({.op = "Gather", .inputs = {rows, ids}})->output(), output);
  rewriter.set_opset("", 17);
  rewriter.commit();
  return graph;
}

TokenData tokens(const char* lines) {
  return TokenData::parse_lines(lines, "x.jsonl", {});
}

TEST(Features, AreFewerThanTokensAndNoLogits) {
  EXPECT_TRUE(gives_features(*encoder(std::vector<float>(8, 1))));
  EXPECT_FALSE(gives_features(*encoder(std::vector<float>(8, 1), "logits")));
  Graph arrays("arrays");
  Rewriter rewriter(arrays);
  Value* x = rewriter.add_input("x", {.dtype = DType::F32, .shape = SymShape{1, 2, 3}});
  rewriter.add_output(x, "y");
  rewriter.commit();
  EXPECT_FALSE(gives_features(arrays));
}

TEST(Features, ArePooledOverEachText) {
  const auto original = encoder({1, 0, 0, 1, 2, 0, 0, 2});
  const auto candidate = encoder({1, 0, 0, 1, 0, 2, 0, 2});  // token 2 turned by 90 degrees
  const TokenData data = tokens("{\"ids\": [0, 1]}\n{\"ids\": [0, 2]}\n{\"ids\": [2]}\n");
  const TensorSamples samples = feature_samples(*original, data, {.context = 8});
  ASSERT_EQ(samples.count, 3);
  const TensorComparison result = compare_tensors(*original, *candidate, samples);
  ASSERT_EQ(result.outputs.size(), 1u);
  ASSERT_TRUE(result.outputs[0].pooled_cosine);
  // Sums (1, 1), (3, 0), (2, 0) against (1, 1), (1, 2), (0, 2).
  EXPECT_NEAR(result.outputs[0].pooled_cosine->mean, (1 + 1 / std::sqrt(5.0) + 0) / 3, 1e-9);
  EXPECT_NEAR(result.outputs[0].pooled_cosine->least, 0, 1e-9);
}

TEST(Features, LongTextsAreCutIntoWindows) {
  const auto graph = encoder(std::vector<float>(8, 1));
  const TokenData data = tokens("{\"ids\": [0, 1, 2, 3, 0, 1]}\n");
  const TensorSamples samples = feature_samples(*graph, data, {.context = 3});
  ASSERT_EQ(samples.count, 2);
  EXPECT_EQ(samples.inputs(1, 1).at("input_ids").dense().to_ints(), (std::vector<int64_t>{3, 0, 1}));
  EXPECT_EQ(feature_samples(*graph, data, {.context = 3}, 1).count, 1);
}

TEST(Features, IdsOfAnotherVocabularyAreRefused) {
  const auto graph = encoder(std::vector<float>(8, 1));
  EXPECT_QUERN_ERROR(feature_samples(*graph, tokens("{\"ids\": [0, 4]}\n"), {.context = 3}),
                     ErrorCode::BadData, "token id 4", "vocabulary of 4");
}

}  // namespace
}  // namespace quern::calibrate
