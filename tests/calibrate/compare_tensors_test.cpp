#include "calibrate/compare_tensors.h"

#include <gtest/gtest.h>

#include <cmath>

#include "formats/npy/npz.h"
#include "ir/rewriter.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace quern::calibrate {
namespace {

// y = x * w, [n, 3] each.
std::unique_ptr<Graph> scaled(std::vector<float> weights, Dim batch = Dim::symbol("n"),
                              const std::string& output = "y") {
  auto graph = std::make_unique<Graph>("scaled");
  Rewriter rewriter(*graph);
  Value* x = rewriter.add_input("x", {.dtype = DType::F32, .shape = SymShape{batch, 3}});
  const auto width = static_cast<int64_t>(weights.size());
  Value* w = rewriter.add_constant(Tensor::from<float>({width}, std::span<const float>(weights)), "w");
  Node* product = rewriter.add_node({.op = "Mul", .inputs = {x, w}});
  rewriter.add_output(product->output(), output);
  rewriter.set_opset("", 17);
  rewriter.commit();
  return graph;
}

class CompareTensors : public testing::Test {
 protected:
  TensorData data(const std::map<std::string, Tensor>& arrays) const {
    npy::write_archive(folder_ / "x.npz", arrays);
    return TensorData::load(folder_ / "x.npz", {}, {});
  }
  static Tensor inputs() { return Tensor::from<float>({4, 3}, {1, 0, 0, 0, 2, 0, 0, 0, 3, 3, 4, 0}); }
  test::TempDir folder_;
};

TEST_F(CompareTensors, MeasuresTheError) {
  const auto reference = scaled({1, 1, 1});
  const auto candidate = scaled({1, 1.5F, 1});
  const TensorComparison result = compare_tensors(*reference, *candidate, data({{"x", inputs()}}));
  ASSERT_EQ(result.outputs.size(), 1u);
  EXPECT_EQ(result.samples, 4);
  EXPECT_DOUBLE_EQ(result.outputs[0].max_abs_error, 2);
  EXPECT_NEAR(result.outputs[0].sqnr_db, 10 * std::log10(39.0 / 5.0), 1e-9);
  EXPECT_NEAR(result.outputs[0].cosine, (1 + 6 + 9 + 9 + 24) / std::sqrt(39.0 * (1 + 9 + 9 + 9 + 36)), 1e-9);
  EXPECT_FALSE(result.labelled);
}

TEST_F(CompareTensors, EqualGraphsHaveNoError) {
  const auto graph = scaled({1, 2, 3});
  const TensorComparison result = compare_tensors(*graph, *graph, data({{"x", inputs()}}));
  EXPECT_TRUE(std::isinf(result.outputs[0].sqnr_db));
  EXPECT_DOUBLE_EQ(result.outputs[0].cosine, 1);
  EXPECT_EQ(result.outputs[0].max_abs_error, 0);
}

TEST_F(CompareTensors, LabelsMakeAClassifier) {
  const auto reference = scaled({1, 1, 1});
  const auto candidate = scaled({4, 1, 1});
  const TensorComparison result = compare_tensors(
      *reference, *candidate, data({{"x", inputs()}, {"labels", Tensor::from<int64_t>({4}, {0, 1, 0, 1})}}));
  ASSERT_TRUE(result.labelled);
  EXPECT_DOUBLE_EQ(result.reference_accuracy.value, 0.75);  // classes 0 1 2 1
  EXPECT_DOUBLE_EQ(result.candidate_accuracy.value, 0.5);   // classes 0 1 2 0
  EXPECT_DOUBLE_EQ(result.agreement.value, 0.75);
}

TEST_F(CompareTensors, RunsAsManySamplesAsTheGraphStates) {
  const auto graph = scaled({1, 2, 3}, 2);
  EXPECT_EQ(compare_tensors(*graph, *graph, data({{"x", inputs()}})).samples, 4);
  const auto three = scaled({1, 2, 3}, 3);
  EXPECT_QUERN_ERROR(compare_tensors(*three, *three, data({{"x", inputs()}})), ErrorCode::BadData,
                     "4 samples", "3 at a time");
}

TEST_F(CompareTensors, RefusesWhatDoesNotFit) {
  const auto graph = scaled({1, 2, 3});
  const auto renamed = scaled({1, 2, 3}, Dim::symbol("n"), "z");
  EXPECT_QUERN_ERROR(compare_tensors(*graph, *renamed, data({{"x", inputs()}})), ErrorCode::InvalidArgument,
                     "no output 'y'");
  EXPECT_QUERN_ERROR(compare_tensors(*graph, *graph, data({{"q", inputs()}})), ErrorCode::BadData, "'x'");
  const auto broken = scaled({1, std::nanf(""), 3});
  EXPECT_QUERN_ERROR(compare_tensors(*graph, *broken, data({{"x", inputs()}})), ErrorCode::InvalidModel,
                     "'y' is NaN", "candidate");
  EXPECT_NO_THROW(compare_tensors(*broken, *broken, data({{"x", inputs()}})));
}

}  // namespace
}  // namespace quern::calibrate
