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
