#include "ir/quantize.h"
#include "tests/passes/pass_test.h"

namespace quern::test {
namespace {

using Ints = std::vector<int64_t>;

class FuseConvolutionTest : public PassTest {
 protected:
  Value* constant(Rewriter& r, Shape shape, const char* name, double low = -1) {
    Tensor tensor = Tensor::zeros(DType::F32, std::move(shape));
    for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, low + 0.29 * static_cast<double>(i * 5 % 7));
    return r.add_constant(tensor, name);
  }
  Value* input(Rewriter& r, int64_t channels) { return r.add_input("x", f32({sym("n"), channels, 6, 5})); }
  Value* node(Rewriter& r, const char* op, std::vector<Value*> inputs, Attributes attributes = {}) {
    return r
        .add_node({.op = op, .opset = 17, .inputs = std::move(inputs), .attributes = std::move(attributes)})
        ->output();
  }
  Value* norm(Rewriter& r, Value* x, int64_t channels, Attributes attributes = {}) {
    return node(r, "BatchNormalization",
                {x, constant(r, {channels}, "scale", 0.5), constant(r, {channels}, "shift"),
                 constant(r, {channels}, "mean"), constant(r, {channels}, "var", 0.3)},
                std::move(attributes));
  }
  const Node& last() { return *graph().nodes().back(); }
};

TEST_F(FuseConvolutionTest, Conv) {
  build([&](Rewriter& r) {
    r.add_output(node(r, "Conv", {input(r, 4), constant(r, {6, 4, 3, 2}, "w"), constant(r, {6}, "b")},
                      {{"pads", Ints{1, 0, 1, 1}}, {"strides", Ints{2, 1}}}),
                 "y");
  });
  expect_fires("fuse-convolution");
  expect_ops({"Transpose", "Reshape", "Convolution"});
  EXPECT_EQ(last().ints_attribute("kernel_shape", {}), (Ints{3, 2}));
  EXPECT_EQ(last().input(1)->shape(), (SymShape{6, 24}));
}

TEST_F(FuseConvolutionTest, OfOnePointOrOneChannelNothingIsMoved) {
  build([&](Rewriter& r) {
    Value* wide = node(r, "Conv", {input(r, 4), constant(r, {8, 4, 1, 1}, "w")});
    r.add_output(node(r, "Conv", {wide, constant(r, {8, 1, 3, 3}, "d")}, {{"group", int64_t{8}}}), "y");
  });
  expect_fires("fuse-convolution");
  expect_ops({"Reshape", "Convolution", "Reshape", "Convolution"});
}

TEST_F(FuseConvolutionTest, Groups) {
  build([&](Rewriter& r) {
    r.add_output(node(r, "Conv", {input(r, 4), constant(r, {6, 2, 3, 3}, "w")}, {{"group", int64_t{2}}}),
                 "y");
  });
  expect_fires("fuse-convolution");
}

TEST_F(FuseConvolutionTest, ConvTranspose) {
  for (const int64_t groups : {1, 2}) {
    build([&](Rewriter& r) {
      r.add_output(node(r, "ConvTranspose", {input(r, 4), constant(r, {4, 3, 3, 2}, "w")},
                        {{"group", groups}, {"strides", Ints{2, 2}}, {"output_padding", Ints{1, 0}}}),
                   "y");
    });
    expect_fires("fuse-convolution");
    EXPECT_EQ(last().op(), "ConvolutionTranspose");
    EXPECT_EQ(last().input(1)->shape(), (SymShape{3 * groups, 4 / groups * 6}));
  }
}

TEST_F(FuseConvolutionTest, WhatIsNoConstantStays) {
  build([&](Rewriter& r) {
    Value* w = r.add_input("w", f32({2, 4, 3, 3}));
    r.add_output(node(r, "Conv", {input(r, 4), w}), "y");
  });
  EXPECT_TRUE(has_reason(expect_no_match("fuse-convolution"), "no constant"));
  build([&](Rewriter& r) {
    Tensor floats = Tensor::zeros(DType::F32, {2, 36});
    QuantizedTensor codes = quantize(floats, {});
    codes.codes = codes.codes.reshaped({2, 4, 3, 3});
    r.add_output(node(r, "Conv", {input(r, 4), r.add_constant(codes, "w")}), "y");
  });
  EXPECT_TRUE(has_reason(expect_no_match("fuse-convolution"), "quantized already"));
}

TEST_F(FuseConvolutionTest, BatchNormalizationIsFolded) {
  build([&](Rewriter& r) {
    Value* y = node(r, "Conv", {input(r, 4), constant(r, {6, 4, 3, 3}, "w"), constant(r, {6}, "b")});
    r.add_output(node(r, "Relu", {norm(r, y, 6)}), "y");
  });
  run("fuse-convolution");
  expect_fires("fold-batch-norm");
  expect_ops({"Transpose", "Reshape", "Mul", "Convolution", "Relu"});
}

TEST_F(FuseConvolutionTest, ChainsOfScalesAndShiftsAreFolded) {
  build([&](Rewriter& r) {
    Value* y =
        node(r, "ConvTranspose", {input(r, 4), constant(r, {4, 6, 2, 2}, "w")}, {{"strides", Ints{2, 2}}});
    y = norm(r, y, 6);
    y = node(r, "Mul", {y, constant(r, {6, 1, 1}, "gain")});
    y = node(r, "Sub", {y, constant(r, {1, 6, 1, 1}, "offset")});
    y = node(r, "Add", {r.add_constant(Tensor::scalar(0.25F), "bit"), y});
    r.add_output(node(r, "Relu", {y}), "y");
  });
  run("fuse-convolution");
  expect_fires("fold-batch-norm");
  EXPECT_EQ(ops().back(), "Relu");
  EXPECT_EQ(ops()[ops().size() - 2], "ConvolutionTranspose");
}

TEST_F(FuseConvolutionTest, BehindARowsProductToo) {
  build([&](Rewriter& r) {
    Value* x = r.add_input("x", f32({sym("n"), 4}));
    Value* y =
        node(r, "Gemm", {x, constant(r, {6, 4}, "w"), constant(r, {6}, "b")}, {{"transB", int64_t{1}}});
    r.add_output(norm(r, y, 6), "y");
  });
  run("fuse-linear");
  expect_fires("fold-batch-norm");
  expect_ops({"Mul", "Linear"});
}

TEST_F(FuseConvolutionTest, WhatTheProductDoesNotOwnStays) {
  build([&](Rewriter& r) {  // the product is read twice
    Value* y = node(r, "Conv", {input(r, 4), constant(r, {6, 4, 3, 3}, "w")});
    r.add_output(node(r, "Add", {norm(r, y, 6), y}), "y");
  });
  run("fuse-convolution");
  expect_no_match("fold-batch-norm");
  build([&](Rewriter& r) {  // one number for each column, not for each channel
    Value* y = node(r, "Conv", {input(r, 4), constant(r, {3, 4, 3, 3}, "w")});
    r.add_output(node(r, "Mul", {y, constant(r, {3}, "gain")}), "y");
  });
  run("fuse-convolution");
  expect_no_match("fold-batch-norm");
  build([&](Rewriter& r) { r.add_output(norm(r, input(r, 4), 4), "y"); });  // alone
  expect_no_match("fold-batch-norm");
}

TEST_F(FuseConvolutionTest, TrainingIsNotFolded) {
  build([&](Rewriter& r) {
    Value* y = node(r, "Conv", {input(r, 4), constant(r, {6, 4, 3, 3}, "w")});
    r.add_output(norm(r, y, 6, {{"training_mode", int64_t{1}}}), "y");
  });
  run("fuse-convolution");
  EXPECT_TRUE(has_reason(expect_no_match("fold-batch-norm"), "inference"));
}

}  // namespace
}  // namespace quern::test
