// Tokens that leave an encoder by a table.
#include "runtime/layers/hash_exit.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/runtime/layers/random_encoder.h"
#include "tests/support/expect_error.h"

namespace quern::runtime {
namespace {

using test::EncoderShape;
using test::random_encoder;
using Norm = EncoderShape::Norm;

constexpr int64_t kBatch = 5, kLength = 7, kVocabulary = 61;

NamedValues batch() {
  std::mt19937 random(11);
  Tensor ids = Tensor::zeros(DType::I64, {kBatch, kLength}), mask = ids;
  for (int64_t i = 0; i < ids.size(); ++i) {
    ids.set_int(i, static_cast<int64_t>(random() % kVocabulary));
    mask.set_int(i, i % kLength < kLength - i / kLength % 3 ? 1 : 0);
  }
  return {{"input_ids", ids}, {"attention_mask", mask}};
}

void expect_near(const Tensor& got, const Tensor& wanted) {
  ASSERT_EQ(got.shape(), wanted.shape());
  for (int64_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got.at(i), wanted.at(i), 2e-4) << i;
}

// The whole model, layer by layer, the states of tokens that have left put back behind each.
Tensor by_restoring(const Graph& graph, const NamedValues& inputs, const std::vector<int64_t>& table) {
  const EncoderLayers layers = find_encoder_layers(graph);
  std::vector<const Value*> given(graph.inputs().begin(), graph.inputs().end());
  Bindings values;
  for (const Value* input : graph.inputs()) values[input] = inputs.at(input->name());
  const Tensor& ids = *values.at(layers.ids).tensor();
  Tensor stream = GraphPart(graph, given, {layers.at(0).stream}).run(values)[0].dense();
  for (int64_t l = 0; l < layers.layers(); ++l) {
    std::vector<const Value*> with = given;
    with.push_back(layers.at(l).stream);
    Bindings now = values;
    now[layers.at(l).stream] = stream;
    Tensor behind = GraphPart(graph, with, {layers.at(l + 1).stream}).run(now)[0].dense();
    const int64_t width = stream.dim(2);
    for (int64_t i = 0; i < ids.size(); ++i) {
      if (i % kLength == 0 || table[static_cast<size_t>(ids.int_at(i))] > l) continue;
      for (int64_t c = 0; c < width; ++c) behind.set(i * width + c, stream.at(i * width + c));
    }
    stream = behind;
  }
  given.push_back(layers.at(layers.layers()).stream);
  values[layers.at(layers.layers()).stream] = stream;
  return GraphPart(graph, given, {layers.logits->value}).run(values)[0].dense();
}

std::vector<int64_t> some_table() {
  std::vector<int64_t> table;
  for (int64_t id = 0; id < kVocabulary; ++id) table.push_back(1 + id % 4);
  return table;
}

class HashExits : public testing::TestWithParam<EncoderShape> {};

TEST_P(HashExits, TokensThatAllStayAreTheWholeModel) {
  const std::shared_ptr<const Graph> graph = random_encoder(GetParam());
  HashExitEncoder encoder(graph, std::vector<int64_t>(kVocabulary, 4));
  expect_near(encoder.run(batch()), Interpreter(*graph).run(batch()).at("logits").dense());
  EXPECT_EQ(encoder.statistics().average_layers(), 4);
  EXPECT_EQ(encoder.rows_computed(), encoder.rows_of_all());
}

INSTANTIATE_TEST_SUITE_P(Spellings, HashExits,
                         testing::Values(EncoderShape{}, EncoderShape{.norm = Norm::Pre, .mean_pool = true},
                                         EncoderShape{.norm = Norm::PreFused, .mean_pool = true}));

// What tokens that have left hand on is their state at the exit, in every later layer.
TEST(HashExit, IsTheModelWithTheStatesOfThoseWhoLeftPutBack) {
  for (const auto norm : {Norm::Post, Norm::Pre}) {
    const std::shared_ptr<const Graph> graph = random_encoder({.norm = norm, .mean_pool = true});
    HashExitEncoder encoder(graph, some_table());
    const Tensor got = encoder.run(batch());
    expect_near(got, by_restoring(*graph, batch(), some_table()));
    EXPECT_LT(encoder.statistics().average_layers(), 4);
  }
}

// Rows that have left are not computed by anything but keys and values.
TEST(HashExit, ComputesNothingButKeysAndValuesForThoseWhoLeft) {
  const std::shared_ptr<const Graph> graph = random_encoder();
  HashExitEncoder encoder(graph, std::vector<int64_t>(kVocabulary, 1));
  std::map<int64_t, int64_t> linears;  // tokens of a Linear's output, by how many there are
  RunOptions options;
  options.on_value = [&](const Value& value, const RuntimeValue& data) {
    const bool linear = value.producer() != nullptr && value.producer()->op() == "Linear";
    if (linear && data.tensor()->rank() == 3) ++linears[data.tensor()->dim(1)];
  };
  encoder.run(batch(), options);
  // Layer 0: all six. Layers 1 to 3: keys and values of all, four products of the first token alone.
  EXPECT_EQ(linears[kLength], 6 + 3 * 2);
  EXPECT_EQ(linears[1], 3 * 4);
  EXPECT_EQ(encoder.rows_computed(), kBatch * (kLength + 3));
  EXPECT_EQ(encoder.statistics().tokens, (std::vector<int64_t>{kBatch * (kLength - 1), 0, 0, kBatch}));
}

TEST(HashExit, FrequentTokensLeaveFirst) {
  using Layers = std::vector<int64_t>;
  EXPECT_EQ(layers_by_frequency(Layers{5, 0, 9, 1, 7}, Layers{1, 2}, 2), (Layers{2, 2, 1, 2, 1}));
  EXPECT_EQ(layers_by_frequency(Layers{5, 0, 9, 1, 7}, Layers{3}, 6), (Layers{3, 6, 3, 3, 3}));
  EXPECT_EQ(layers_by_frequency(Layers{0, 0}, Layers{1, 2, 3}, 3), (Layers{3, 3}));
}

TEST(HashExit, RefusesWhatItCannotPart) {
  const auto refused = [](const EncoderShape& shape, std::vector<int64_t> table, ErrorCode code,
                          const std::string& part) {
    EXPECT_QUERN_ERROR(HashExitEncoder(random_encoder(shape), std::move(table)), code, part);
  };
  refused({}, {5}, ErrorCode::InvalidArgument, "after layer 5 of a model of 4");
  refused({.spelled_out = true}, {1}, ErrorCode::Unsupported, "one operator");
  refused({.expanded = true}, {1}, ErrorCode::Unsupported, "differs by query");
}

}  // namespace
}  // namespace quern::runtime
