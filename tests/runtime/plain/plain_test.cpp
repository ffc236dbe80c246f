// The kernels of plain graphs against the reference, operator by operator.
#include "tests/runtime/plain/like_reference.h"

namespace quern::runtime {
namespace {

TEST(Plain, MatMul) {
  const std::vector<std::vector<Shape>> shapes = {{{5, 7}, {7, 3}},
                                                  {{1, 300}, {300, 65}},
                                                  {{7}, {7, 3}},
                                                  {{5, 7}, {7}},
                                                  {{7}, {7}},
                                                  {{2, 3, 5, 7}, {7, 4}},
                                                  {{2, 3, 5, 7}, {2, 3, 7, 4}},
                                                  {{2, 1, 5, 7}, {3, 7, 4}},
                                                  {{3, 5, 7}, {1, 7, 4}}};
  for (const auto& inputs : shapes) expect_like_reference({"MatMul", inputs}, inputs[0].back());
}

TEST(Plain, Gemm) {
  for (const int64_t a : {0, 1}) {
    for (const int64_t b : {0, 1}) {
      for (const Shape& c : {Shape{}, Shape{6}, Shape{5, 1}, Shape{5, 6}}) {
        expect_like_reference({"Gemm",
                               {a != 0 ? Shape{9, 5} : Shape{5, 9}, b != 0 ? Shape{6, 9} : Shape{9, 6}, c},
                               {{"transA", a}, {"transB", b}, {"alpha", 0.5F}, {"beta", 2.0F}}},
                              9);
      }
    }
  }
}

TEST(Plain, IntegerProductsAreExact) {
  for (const DType dtype : {DType::U8, DType::I8}) {
    for (const Shape& a_zero : {Shape{}, Shape{1}, Shape{5}}) {
      for (const Shape& b_zero : {Shape{}, Shape{1}, Shape{6}}) {
        Case c{"MatMulInteger", {{5, 700}, {700, 6}, a_zero, b_zero}};
        c.dtype = dtype;
        expect_like_reference(c);
      }
    }
  }
  // The largest sums.
  const auto filled = [](DType dtype, Shape shape, int64_t code) {
    Tensor tensor = Tensor::zeros(dtype, std::move(shape));
    for (int64_t i = 0; i < tensor.size(); ++i) tensor.set_int(i, code);
    return tensor;
  };
  for (const int64_t code : {0, 255}) {
    const std::vector<Tensor> inputs = {filled(DType::U8, {2, 1000}, 255), filled(DType::U8, {1000, 3}, code),
                                        Tensor(), filled(DType::U8, {1}, 255 - code)};
    expect_like_reference({"MatMulInteger", {{2, 1000}, {1000, 3}}}, inputs, 1);
  }
}

TEST(Plain, Conv) {
  const std::vector<Case> cases = {
      {"Conv", {{2, 3, 9, 10}, {4, 3, 3, 3}}},
      {"Conv", {{1, 16, 8, 8}, {24, 16, 3, 3}, {24}}, {{"pads", Ints{1, 1, 1, 1}}, {"strides", Ints{2, 2}}}},
      {"Conv", {{1, 6, 9, 7}, {6, 1, 3, 3}, {6}}, {{"group", int64_t{6}}, {"pads", Ints{0, 1, 2, 1}}}},
      {"Conv", {{2, 8, 9, 7}, {6, 4, 2, 3}}, {{"group", int64_t{2}}, {"dilations", Ints{2, 1}}}},
      {"Conv", {{2, 4, 17}, {5, 4, 3}, {5}}, {{"auto_pad", std::string("SAME_UPPER")}, {"strides", Ints{2}}}},
      {"Conv", {{1, 2, 5, 6, 7}, {3, 2, 2, 3, 2}}, {{"auto_pad", std::string("SAME_LOWER")}}}};
  for (const Case& c : cases) expect_like_reference(c, 150);
}

TEST(Plain, Pooling) {
  for (const std::string op : {"MaxPool", "AveragePool"}) {
    for (const int64_t ceil : {0, 1}) {
      expect_like_reference({op, {{2, 3, 9, 10}}, {{"kernel_shape", Ints{3, 2}}, {"ceil_mode", ceil}}}, 6);
      expect_like_reference({op,
                             {{2, 3, 9, 10}},
                             {{"kernel_shape", Ints{3, 3}},
                              {"strides", Ints{2, 2}},
                              {"pads", Ints{1, 1, 1, 1}},
                              {"ceil_mode", ceil}}},
                            9);
    }
    expect_like_reference({op, {{1, 4, 11}}, {{"kernel_shape", Ints{4}}, {"pads", Ints{2, 1}}}}, 4);
    expect_like_reference({op, {{1, 2, 5, 6, 7}}, {{"kernel_shape", Ints{2, 2, 2}}}}, 8);
  }
  expect_like_reference(
      {"AveragePool",
       {{2, 3, 9, 10}},
       {{"kernel_shape", Ints{3, 3}}, {"pads", Ints{1, 1, 1, 1}}, {"count_include_pad", int64_t{1}}}},
      9);
  expect_like_reference({"GlobalAveragePool", {{2, 3, 9, 10}}}, 90);
  expect_like_reference({"GlobalMaxPool", {{2, 3, 9, 10}}});
}

TEST(Plain, Elementwise) {
  for (const std::string op : {"Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Gelu"})
    expect_like_reference({op, {{3, 37}}});
  expect_like_reference({"Gelu", {{3, 37}}, {{"approximate", std::string("tanh")}}});
  const std::vector<std::vector<Shape>> shapes = {
      {{3, 37}, {3, 37}},  {{3, 37}, {37}},     {{37}, {3, 37}},
      {{3, 37}, {1}},      {{1, 1}, {3, 37}},   {{2, 3, 5}, {2, 1, 1}},
      {{2, 1, 5}, {3, 1}}, {{2, 3, 5}, {3, 5}}, {{4, 1, 1, 6}, {1, 2, 3, 1}},
      {{1, 1}, {1}}};
  for (const std::string op : {"Add", "Sub", "Mul", "Div"}) {
    for (const auto& inputs : shapes) expect_like_reference({op, inputs}, 4);
  }
}

TEST(Plain, PowSquares) {
  const Tensor x = random_tensor(DType::F32, {3, 37}, 1);
  expect_like_reference({"Pow", {{3, 37}, {1}}}, {x, Tensor::from<float>({1}, {2.0F})}, 1);
  expect_like_reference({"Pow", {{3, 37}, {1}}}, {x, Tensor::from<float>({1}, {3.0F})}, 1);
}

TEST(Plain, Rows) {
  expect_like_reference({"Softmax", {{2, 3, 37}}}, 37);
  expect_like_reference({"Softmax", {{2, 3, 37}}, {{"axis", int64_t{1}}}}, 37);
  expect_like_reference({.op = "Softmax", .inputs = {{2, 3, 37}}, .opset = 11}, 37);
  for (const std::string op : {"LayerNormalization", "RMSNormalization"}) {
    expect_like_reference({op, {{2, 3, 37}, {37}}}, 37);
    expect_like_reference({op, {{2, 3, 37}, {3, 37}}, {{"axis", int64_t{1}}}}, 111);
  }
  expect_like_reference({"LayerNormalization", {{2, 3, 37}, {37}, {37}}, {{"epsilon", 0.1F}}}, 37);
  const Tensor x = random_tensor(DType::F32, {2, 3, 37}, 1);
  for (const std::string op : {"ReduceMean", "ReduceSum"}) {
    for (const int64_t axis : {-1, 2, 1}) {
      for (const int64_t keep : {0, 1}) {
        expect_like_reference({op, {{2, 3, 37}}, {{"keepdims", keep}}},
                              {x, Tensor::from<int64_t>({1}, {axis})}, 37);
      }
    }
  }
}

TEST(Plain, Transpose) {
  expect_like_reference({"Transpose", {{5, 7}}});
  expect_like_reference({"Transpose", {{2, 3, 5, 7}}, {{"perm", Ints{0, 2, 1, 3}}}});
  expect_like_reference({"Transpose", {{2, 3, 5, 7}}, {{"perm", Ints{0, 2, 3, 1}}}});
}

// What the fast kernels do not take goes to the reference by itself.
TEST(Plain, LeavesOtherTypesAlone) {
  Case c{"MatMul", {{5, 7}, {7, 3}}};
  c.implementation = "reference";
  for (const DType dtype : {DType::F16, DType::I32}) {
    c.dtype = dtype;
    std::vector<Tensor> inputs;
    for (const Shape& shape : c.inputs) inputs.push_back(random_tensor(DType::I4, shape, 3).cast(dtype));
    expect_like_reference(c, inputs, 1);
  }
}

TEST(Plain, ErrorsAreTheReferences) {
  for (const Case& c : {Case{"MatMul", {{5, 7}, {8, 3}}}, Case{"Conv", {{1, 3, 5, 5}, {4, 2, 3, 3}}},
                        Case{"Gemm", {{5, 7}, {7, 3}, {4}}}}) {
    for (const std::string forced : {"", "reference"}) {
      std::string ran;
      EXPECT_THROW(run(c, random_inputs(c), forced, ran), Error) << described(c) << " " << forced;
    }
  }
}

// A model is compiled to the same bytes on every machine.
TEST(Plain, EvaluateTakesTheReference) {
  Graph graph;
  Rewriter rewriter(graph);
  Value* a = rewriter.add_constant(random_tensor(DType::F32, {3, 5}, 1), "a");
  Value* b = rewriter.add_constant(random_tensor(DType::F32, {5, 2}, 2), "b");
  Node* node = rewriter.add_node({.op = "MatMul", .inputs = {a, b}});
  rewriter.add_output(node->output(), "y");
  rewriter.commit();
  const Value* wanted = node->output();
  std::string ran;
  RunOptions options;
  options.on_kernel = [&](const Node&, std::string_view name) { ran = std::string(name); };
  evaluate({&wanted, 1}, {}, options);
  EXPECT_EQ(ran, "reference");
}

}  // namespace
}  // namespace quern::runtime
