#include "passes/quantize/sensitivity.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"

namespace quern::test {
namespace {

using passes::assign_formats;
using passes::FormatCost;
using passes::TensorSensitivity;

calibrate::Samples random_samples() {
  std::mt19937 random(5);
  calibrate::Samples samples{.source = "random", .options = {.context = 24}};
  for (int i = 0; i < 4; ++i) {
    std::vector<int64_t> ids;
    for (int t = 0; t < 24; ++t) ids.push_back(static_cast<int64_t>(random() % 97));
    samples.windows.push_back(ids);
  }
  return samples;
}

TEST(Sensitivity, MoreBitsCostLess) {
  const std::unique_ptr<Graph> graph = DecoderBuilder({.layers = 1}).build();
  Rewriter rewriter(*graph);
  rewriter.set_metadata("quern.decoder", "1");
  rewriter.commit();
  passes::SensitivityOptions options;
  options.formats = {"int8", "int3", "fp16"};
  options.settings.group_size = 16;
  options.threads = 1;
  const std::vector<TensorSensitivity> found = passes::measure_sensitivity(*graph, random_samples(), options);
  ASSERT_EQ(found.size(), 8U) << "table, q, k, v, o, gate, up, down";
  for (const TensorSensitivity& tensor : found) {
    ASSERT_EQ(tensor.costs.size(), 3U);
    EXPECT_EQ(tensor.costs[0].weights, "int3") << "by ascending bytes";
    EXPECT_EQ(tensor.costs[2].weights, "fp16");
    EXPECT_GT(tensor.costs[0].kl, 10 * tensor.costs[1].kl) << tensor.name;
    EXPECT_GT(tensor.costs[0].kl, tensor.costs[2].kl) << tensor.name;
  }
}

std::vector<TensorSensitivity> made_up() {
  // b gains most per byte, then a; c gains nothing.
  return {{"a", 100, {{"int3", 30, 0.50, 0}, {"int4", 40, 0.30, 0}, {"int8", 80, 0.01, 0}}},
          {"b", 100, {{"int3", 30, 2.00, 0}, {"int4", 40, 1.00, 0}, {"int8", 80, 0.02, 0}}},
          {"c.d", 100, {{"int3", 30, 0.01, 0}, {"int4", 40, 0.01, 0}, {"int8", 80, 0.01, 0}}}};
}

TEST(Sensitivity, BytesGoWhereTheyGainMost) {
  EXPECT_EQ(assign_formats(made_up(), 90), (std::vector<size_t>{0, 0, 0}));
  EXPECT_EQ(assign_formats(made_up(), 100), (std::vector<size_t>{0, 1, 0}));
  EXPECT_EQ(assign_formats(made_up(), 140), (std::vector<size_t>{0, 2, 0}));
  EXPECT_EQ(assign_formats(made_up(), 1000), (std::vector<size_t>{2, 2, 0})) << "c has nothing to gain";
  EXPECT_QUERN_ERROR(assign_formats(made_up(), 89), ErrorCode::InvalidArgument, "90", "89");
}

TEST(Sensitivity, OverridesNameTensorsExactly) {
  const nlohmann::json overrides = passes::overrides_of(made_up(), {0, 2, 1});
  EXPECT_EQ(overrides[1], (nlohmann::json{{"pattern", "^b$"}, {"weights", "int8"}}));
  EXPECT_EQ(overrides[2]["pattern"], "^c\\.d$");
}

}  // namespace
}  // namespace quern::test
