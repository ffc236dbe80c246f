#include "calibrate/graph_model.h"

#include <gtest/gtest.h>

#include "ir/rewriter.h"
#include "tests/support/expect_error.h"

namespace quern::calibrate {
namespace {

const Dim kBatch = Dim::symbol("batch");
const Dim kSequence = Dim::symbol("sequence");

ValueType type(DType dtype, SymShape shape) {
  return {.dtype = dtype, .shape = std::move(shape)};
}

// Inputs alone; what computes from them does not matter to TokenInputs.
std::unique_ptr<Graph> with_inputs(const std::vector<std::pair<std::string, ValueType>>& inputs) {
  auto graph = std::make_unique<Graph>("model");
  Rewriter rewriter(*graph);
  for (const auto& [name, input] : inputs) rewriter.add_input(name, input);
  rewriter.commit();
  return graph;
}

const std::vector<int64_t> kIds = {7, 8, 9};

TEST(TokenInputs, FillsWhatExportersGiveADecoder) {
  const auto graph =
      with_inputs({{"input_ids", type(DType::I64, {kBatch, kSequence})},
                   {"attention_mask", type(DType::I64, {kBatch, Dim::symbol("past") + kSequence})},
                   {"position_ids", type(DType::I64, {kBatch, kSequence})},
                   {"past_key_values.0.key", type(DType::F16, {kBatch, 2, Dim::symbol("past"), 32})},
                   {"use_cache_branch", type(DType::Bool, {1})}});
  const TokenInputs inputs(*graph);
  const runtime::NamedValues values = inputs.fill(kIds);
  EXPECT_TRUE(identical(*values.at("input_ids").tensor(), Tensor::from<int64_t>({1, 3}, {7, 8, 9})));
  EXPECT_TRUE(identical(*values.at("attention_mask").tensor(), Tensor::from<int64_t>({1, 3}, {1, 1, 1})));
  EXPECT_TRUE(identical(*values.at("position_ids").tensor(), Tensor::from<int64_t>({1, 3}, {0, 1, 2})));
  EXPECT_EQ(values.at("past_key_values.0.key").tensor()->shape(), (Shape{1, 2, 0, 32}));
  EXPECT_EQ(values.at("past_key_values.0.key").dtype(), DType::F16);
  EXPECT_EQ(values.at("use_cache_branch").tensor()->at(0), 0);
  EXPECT_EQ(inputs.fixed_length(), 0);
  EXPECT_EQ(inputs.ids().name(), "input_ids");
}

TEST(TokenInputs, PadsToAFixedLength) {
  const auto graph = with_inputs({{"tokens", type(DType::I32, {1, 5})},
                                  {"mask", type(DType::F32, {1, 5})},
                                  {"token_type_ids", type(DType::I64, {1, 5})}});
  const TokenInputs inputs(*graph);
  EXPECT_EQ(inputs.fixed_length(), 5);
  const runtime::NamedValues values = inputs.fill(kIds);
  EXPECT_TRUE(identical(*values.at("tokens").tensor(), Tensor::from<int32_t>({1, 5}, {7, 8, 9, 0, 0})));
  EXPECT_TRUE(identical(*values.at("mask").tensor(), Tensor::from<float>({1, 5}, {1, 1, 1, 0, 0})));
  EXPECT_TRUE(identical(*values.at("token_type_ids").tensor(), Tensor::zeros(DType::I64, {1, 5})));
  EXPECT_QUERN_ERROR(inputs.fill(std::vector<int64_t>(6, 1)), ErrorCode::BadData, "6 tokens", "5");
}

TEST(TokenInputs, FillsBatches) {
  const auto graph =
      with_inputs({{"input_ids", type(DType::I64, {kBatch, kSequence})},
                   {"attention_mask", type(DType::I64, {kBatch, kSequence})},
                   {"position_ids", type(DType::I64, {kBatch, kSequence})},
                   {"past.key", type(DType::F32, {kBatch, 2, Dim::symbol("past_length"), 32})}});
  const TokenInputs inputs(*graph);
  EXPECT_TRUE(inputs.takes_batches());
  const std::vector<int64_t> more = {1, 2, 3};
  const std::vector<std::span<const int64_t>> sequences = {kIds, more};
  const runtime::NamedValues values = inputs.fill(sequences);
  EXPECT_TRUE(identical(*values.at("input_ids").tensor(), Tensor::from<int64_t>({2, 3}, {7, 8, 9, 1, 2, 3})));
  EXPECT_TRUE(
      identical(*values.at("position_ids").tensor(), Tensor::from<int64_t>({2, 3}, {0, 1, 2, 0, 1, 2})));
  EXPECT_EQ(values.at("past.key").tensor()->shape(), (Shape{2, 2, 0, 32}));
  EXPECT_FALSE(TokenInputs(*with_inputs({{"ids", type(DType::I64, {1, kSequence})}})).takes_batches());
}

// A classifier of two classes: the sums of two columns of a table over the tokens. `over_batch`: less the
// mean over all sequences that are computed together, as graphs that quantize activations by the batch do.
// `fixed`: with a Reshape to a batch of one.
std::shared_ptr<Graph> summing_classifier(bool over_batch, bool fixed) {
  auto graph = std::make_shared<Graph>("model");
  Rewriter rewriter(*graph);
  Value* ids = rewriter.add_input("input_ids", type(DType::I64, {kBatch, kSequence}));
  std::vector<float> rows;
  for (int i = 0; i < 20; ++i) rows.push_back(static_cast<float>((i * 7) % 11));
  Value* table = rewriter.add_constant(Tensor::from<float>({10, 2}, rows), "table");
  Value* looked_up = rewriter.add_node({.op = "Gather", .inputs = {table, ids}})->output();
  Value* axis = rewriter.add_constant(Tensor::from<int64_t>({1}, {1}), "axis");
  Value* logits =
      rewriter
          .add_node(
              {.op = "ReduceSum", .inputs = {looked_up, axis}, .attributes = {{"keepdims", int64_t{0}}}})
          ->output();
  if (over_batch) {
    Value* zero = rewriter.add_constant(Tensor::from<int64_t>({1}, {0}), "zero");
    Value* mean = rewriter.add_node({.op = "ReduceMean", .inputs = {logits, zero}})->output();
    logits = rewriter.add_node({.op = "Sub", .inputs = {logits, mean}})->output();
  }
  if (fixed) {
    Value* shape = rewriter.add_constant(Tensor::from<int64_t>({2}, {1, 2}), "shape");
    logits = rewriter.add_node({.op = "Reshape", .inputs = {logits, shape}})->output();
  }
  rewriter.add_output(logits, "logits");
  rewriter.commit();
  return graph;
}

// Whatever a graph makes of batches, the logits are those of each sequence by itself.
TEST(GraphModel, ExpectedSequencesGetTheLogitsOfEachAlone) {
  std::vector<std::vector<int64_t>> texts;
  for (int64_t i = 0; i < 70; ++i) texts.push_back({i % 10, (3 * i) % 10, (i / 10) % 10});
  texts[20].push_back(4);
  std::vector<std::span<const int64_t>> sequences(texts.begin(), texts.end());
  for (const bool over_batch : {false, true}) {
    for (const bool fixed : {false, true}) {
      const auto graph = summing_classifier(over_batch, fixed);
      const auto model = make_graph_model(graph), alone = make_graph_model(graph);
      EXPECT_EQ(model->kind(), ScoredModel::Kind::Classifier);
      model->expect(sequences);
      const std::vector<int64_t> stranger = {5};
      for (size_t i = 0; i < sequences.size(); ++i) {
        model->start(sequences[i]);
        alone->start(sequences[i]);
        const float *found = model->logits(0, 1)[0], *expected = alone->logits(0, 1)[0];
        EXPECT_NEAR(found[0], expected[0], 1e-4) << i << over_batch << fixed;
        EXPECT_NEAR(found[1], expected[1], 1e-4) << i << over_batch << fixed;
        if (i == 30) model->start(stranger);
      }
    }
  }
}

TEST(TokenInputs, RefusesInputsThatIdsCannotFill) {
  EXPECT_QUERN_ERROR(TokenInputs(*with_inputs({{"pixels", type(DType::F32, {1, 3, 8, 8})}})),
                     ErrorCode::Unsupported, "'pixels'", ".npz");
  EXPECT_QUERN_ERROR(TokenInputs(*with_inputs({})), ErrorCode::Unsupported, "no input");
  EXPECT_QUERN_ERROR(
      TokenInputs(*with_inputs({{"a", type(DType::I64, {1, 5})}, {"b", type(DType::I64, {1, 5})}})),
      ErrorCode::Unsupported, "'a' and 'b'");
}

}  // namespace
}  // namespace quern::calibrate
