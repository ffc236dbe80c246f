// Small graphs that ask for the impossible end in an error, at once and without taking the memory.
#include <gtest/gtest.h>

#include <limits>

#include "ir/rewriter.h"
#include "runtime/interpreter.h"
#include "tests/support/expect_error.h"

namespace quern::runtime {
namespace {

constexpr int64_t kHuge = int64_t{1} << 40;
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();

Tensor ints(std::vector<int64_t> values) {
  return Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, values);
}

// Runs one node on constants within a megabyte per tensor. An undefined tensor stands for an omitted input.
Tensor run_node(const std::string& op, const std::vector<Tensor>& inputs, Attributes attributes = {},
                int opset = 22) {
  Graph graph;
  Rewriter rewriter(graph);
  std::vector<Value*> values;
  for (const Tensor& input : inputs) {
    values.push_back(input.defined() ? rewriter.add_constant(input) : nullptr);
  }
  Node* node = rewriter.add_node({.op = op,
                                  .opset = opset,
                                  .name = "hostile",
                                  .inputs = values,
                                  .attributes = std::move(attributes),
                                  .outputs = {{"y"}}});
  rewriter.add_output(node->output(), "y");
  rewriter.commit();
  RunOptions options;
  options.limits.max_tensor_bytes = 1 << 20;
  options.limits.max_loop_iterations = 1000;
  return Interpreter(graph).run({}, options).at("y").dense();
}

const Tensor kImage = Tensor::from<float>({1, 1, 2, 2}, {1, 2, 3, 4});
const Tensor kVector = Tensor::from<float>({2}, {1, 2});

TEST(HostileShapes, AreRefusedBeforeMemoryIsTaken) {
  const auto oom = ErrorCode::OutOfMemory;
  EXPECT_QUERN_ERROR(run_node("ConstantOfShape", {ints({kHuge})}), oom, "hostile", "limit");
  EXPECT_QUERN_ERROR(run_node("ConstantOfShape", {ints({kMost, kMost})}), oom, "hostile");
  EXPECT_QUERN_ERROR(run_node("Expand", {kVector, ints({kHuge, 2})}), oom, "hostile");
  EXPECT_QUERN_ERROR(run_node("Tile", {kVector, ints({kMost})}), oom, "hostile");
  EXPECT_QUERN_ERROR(
      run_node("Range", {Tensor::scalar<int64_t>(0), Tensor::scalar(kMost), Tensor::scalar<int64_t>(1)}), oom,
      "hostile");
  EXPECT_QUERN_ERROR(run_node("Pad", {kVector, ints({kHuge, 0})}), oom, "hostile");
  EXPECT_QUERN_ERROR(run_node("OneHot", {ints({0}), ints({kHuge}), kVector}), oom, "hostile");
  EXPECT_QUERN_ERROR(run_node("Resize", {kImage, {}, Tensor::from<float>({4}, {1, 1, 1e6F, 1e6F})}), oom,
                     "hostile");
  EXPECT_QUERN_ERROR(run_node("CenterCropPad", {kVector, ints({kHuge})}), oom, "hostile");
  EXPECT_QUERN_ERROR(run_node("HannWindow", {Tensor::scalar(kHuge)}), oom, "hostile");
  EXPECT_QUERN_ERROR(
      run_node("DFT", {kImage.reshaped({1, 4, 1}), Tensor::scalar(kHuge)}, {{"axis", int64_t{1}}}, 17), oom,
      "hostile");
  EXPECT_QUERN_ERROR(run_node("MelWeightMatrix",
                              {Tensor::scalar(kHuge), Tensor::scalar<int64_t>(8),
                               Tensor::scalar<int64_t>(8000), Tensor::scalar(0.0F), Tensor::scalar(1.0F)}),
                     oom, "hostile");
  const Attributes wide{{"pads", std::vector<int64_t>{1 << 29, 1 << 29, 1 << 29, 1 << 29}}};
  EXPECT_QUERN_ERROR(run_node("Conv", {kImage, kImage}, wide), oom, "hostile");
  EXPECT_QUERN_ERROR(
      run_node("ConvTranspose", {kImage, kImage}, {{"strides", std::vector<int64_t>{1 << 29, 1 << 29}}}), oom,
      "hostile");
  Attributes pool = wide;
  pool["kernel_shape"] = std::vector<int64_t>{2, 2};
  EXPECT_QUERN_ERROR(run_node("MaxPool", {kImage}, pool), oom, "hostile");
  EXPECT_QUERN_ERROR(run_node("AveragePool", {kImage}, pool), oom, "hostile");
}

TEST(HostileShapes, ExtremeIntegersAreHandled) {
  const auto invalid = ErrorCode::InvalidModel;
  // Bounds far outside are clamped, as the specification says.
  EXPECT_EQ(run_node("Slice", {kVector, ints({kLeast}), ints({kMost})}).to_floats(),
            (std::vector<float>{1, 2}));
  EXPECT_EQ(
      run_node("Slice", {kVector, ints({kMost}), ints({kLeast}), ints({0}), ints({kLeast})}).to_floats(),
      std::vector<float>{2});
  EXPECT_QUERN_ERROR(run_node("Slice", {kVector, ints({0}), ints({1}), ints({0}), ints({0})}), invalid,
                     "step");
  EXPECT_EQ(run_node("Trilu", {kImage, Tensor::scalar(kMost)}).to_floats(), (std::vector<float>{0, 0, 0, 0}));
  EXPECT_EQ(run_node("Div", {ints({kLeast}), ints({-1})}).to_ints(), std::vector<int64_t>{kLeast});
  EXPECT_EQ(run_node("Div", {ints({1}), ints({0})}).to_ints(), std::vector<int64_t>{0});
  EXPECT_EQ(run_node("Mod", {ints({kLeast}), ints({-1})}).to_ints(), std::vector<int64_t>{0});
  EXPECT_EQ(run_node("Neg", {ints({kLeast})}).to_ints(), std::vector<int64_t>{kLeast});
  EXPECT_EQ(run_node("Abs", {ints({kLeast})}).to_ints(), std::vector<int64_t>{kLeast});
  EXPECT_QUERN_ERROR(run_node("Gather", {kVector, ints({2})}), invalid, "index 2");
  EXPECT_QUERN_ERROR(run_node("Gather", {kVector, ints({kLeast})}), invalid, "index");
  EXPECT_QUERN_ERROR(run_node("Reshape", {kVector, ints({kMost, kMost})}), invalid);
  EXPECT_QUERN_ERROR(run_node("Reshape", {kVector, ints({-2})}), invalid);
  EXPECT_QUERN_ERROR(run_node("Unsqueeze", {kVector, ints({kMost})}), invalid, "axis");
  EXPECT_QUERN_ERROR(run_node("Pad", {kVector, ints({kMost, kMost})}), invalid, "pads");
  EXPECT_QUERN_ERROR(run_node("TopK", {kVector, ints({3})}), invalid, "k is 3");
}

TEST(HostileShapes, WorkDoesNotGrowWithWhatANumberInTheFileSays) {
  // A window of 2^60 elements, of which one holds the four of the image.
  const std::vector<int64_t> half(4, 1 << 29);
  Attributes pool{{"kernel_shape", std::vector<int64_t>{1 << 30, 1 << 30}}, {"pads", half}};
  EXPECT_EQ(run_node("MaxPool", {kImage}, pool).to_floats().front(), 4.0F);
  EXPECT_EQ(run_node("AveragePool", {kImage}, pool).to_floats().front(), 2.5F);
  // 10^12 steps by the definition.
  const int64_t length = 40'000;
  std::vector<float> wave;
  for (int64_t i = 0; i < 1000; ++i) wave.push_back(i % 2 == 0 ? 1.0F : -1.0F);
  const Tensor spectrum = run_node(
      "DFT", {Tensor::from<float>({1, 1000, 1}, wave), Tensor::scalar(length), Tensor::scalar<int64_t>(1)});
  EXPECT_EQ(spectrum.shape(), (Shape{1, length, 2}));
  EXPECT_NEAR(spectrum.at(length), 1000.0, 1e-3);  // the real part at half the rate
  EXPECT_NEAR(spectrum.at(0), 0.0, 1e-3);
  std::vector<Tensor> many(8, Tensor::zeros(DType::F32, {100'000}));
  EXPECT_QUERN_ERROR(run_node("Einsum", many, {{"equation", std::string("a,b,c,d,e,f,g,h->")}}),
                     ErrorCode::InvalidModel, "too many elements");
  many.resize(3);
  EXPECT_QUERN_ERROR(run_node("Einsum", many, {{"equation", std::string("a,b,c->")}}), ErrorCode::Unsupported,
                     "products");
}

TEST(HostileShapes, RanksBelowWhatAnOperatorLooksUpAreRefused) {
  const auto invalid = ErrorCode::InvalidModel;
  const Tensor heads = Tensor::zeros(DType::F32, {1, 1, 2, 4});
  const Tensor scalar = Tensor::scalar(1.0F);
  EXPECT_QUERN_ERROR(run_node("Attention", {heads, heads, heads, {}, scalar, heads}, {}, 23), invalid,
                     "past");
  EXPECT_QUERN_ERROR(run_node("Attention", {heads, heads, heads, {}, heads, scalar}, {}, 23), invalid,
                     "axis");
  EXPECT_QUERN_ERROR(run_node("Attention", {heads, heads, heads, scalar}, {}, 23), invalid, "mask");
  EXPECT_QUERN_ERROR(run_node("RotaryEmbedding", {heads, scalar, scalar}, {}, 23), invalid, "caches");
  EXPECT_QUERN_ERROR(run_node("GatherND", {kVector, ints({0})}, {{"batch_dims", kMost}}), invalid, "fit");
}

TEST(HostileShapes, AttributesAtTheEndsOfTheirRange) {
  const auto invalid = ErrorCode::InvalidModel;
  EXPECT_QUERN_ERROR(
      run_node("ConvTranspose", {kImage, kImage}, {{"output_shape", std::vector<int64_t>{kLeast, kLeast}}}),
      invalid, "output_shape");
  EXPECT_QUERN_ERROR(
      run_node("DequantizeLinear", {Tensor::zeros(DType::I8, {4, 2}), Tensor::zeros(DType::F32, {2, 2})},
               {{"axis", int64_t{0}}, {"block_size", kMost}}, 21),
      invalid, "scales");
}

// The mask was of the data's type before it was one of booleans.
TEST(HostileShapes, OldDropoutsMaskIsOfTheDatasType) {
  for (const auto& [opset, dtype] : {std::pair{9, DType::F32}, {13, DType::Bool}}) {
    Graph graph("dropout");
    Rewriter rewriter(graph);
    Value* x = rewriter.add_constant(kVector, "x");
    Node* node = rewriter.add_node(
        {.op = "Dropout", .opset = opset, .inputs = {x}, .outputs = std::vector<OutputSpec>(2)});
    EXPECT_EQ(node->output(1)->dtype(), dtype);
    rewriter.add_output(node->output(1), "mask");
    rewriter.commit();
    const Tensor mask = Interpreter(graph).run({}).at("mask").dense();
    EXPECT_EQ(mask.dtype(), dtype);
    EXPECT_EQ(mask.at(0), 1);
  }
}

TEST(HostileShapes, RotaryEmbeddingsThatMeanNothingAreRefused) {
  const auto invalid = ErrorCode::InvalidModel;
  const Tensor heads = Tensor::zeros(DType::F32, {1, 1, 1, 4});
  const Tensor cache = Tensor::zeros(DType::F32, {1, 1, 2});
  const auto rotate = [&](const std::string& name, int64_t value) {
    return run_node("RotaryEmbedding", {heads, cache, cache}, {{name, value}}, 23);
  };
  EXPECT_EQ(rotate("rotary_embedding_dim", 4).shape(), heads.shape());
  EXPECT_QUERN_ERROR(rotate("interleaved", 2), invalid, "neither 0 nor 1");
  EXPECT_QUERN_ERROR(rotate("rotary_embedding_dim", 3), invalid, "rotary_embedding_dim is 3");
  EXPECT_QUERN_ERROR(rotate("rotary_embedding_dim", 2), invalid, "2 columns");
  EXPECT_QUERN_ERROR(rotate("rotary_embedding_dim", -4), invalid, "rotary_embedding_dim is -4");
}

TEST(HostileShapes, ALoopThatNeverEndsIsStopped) {
  auto body = std::make_shared<Graph>("body");
  {
    Rewriter rewriter(*body);
    rewriter.add_input("i", {DType::I64, SymShape{}});
    Value* condition = rewriter.add_input("go_on", {DType::Bool, SymShape{}});
    Value* carried = rewriter.add_input("x", {DType::F32, SymShape{Dim(2)}});
    rewriter.add_output(condition, "go_on");
    rewriter.add_output(carried, "x");
    rewriter.commit();
  }
  EXPECT_QUERN_ERROR(run_node("Loop", {{}, {}, kVector}, {{"body", body}}), ErrorCode::Unsupported,
                     "1000 iterations");
}

}  // namespace
}  // namespace quern::runtime
