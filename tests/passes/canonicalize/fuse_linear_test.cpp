#include "tests/passes/pass_test.h"

namespace quern::test {
namespace {

class FuseLinearTest : public PassTest {
 protected:
  Value* weight(Rewriter& r, Shape shape, const char* name) {
    Tensor tensor = Tensor::zeros(DType::F32, shape);
    for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, 0.25 * static_cast<double>(i % 7) - 0.5);
    return r.add_constant(tensor, name);
  }
  Value* input(Rewriter& r) { return r.add_input("x", f32({sym("b"), sym("s"), 3})); }
  Value* node(Rewriter& r, const char* op, std::vector<Value*> inputs, Attributes attributes = {}) {
    return r
        .add_node({.op = op, .opset = 17, .inputs = std::move(inputs), .attributes = std::move(attributes)})
        ->output();
  }
};

TEST_F(FuseLinearTest, MatMul) {
  build([&](Rewriter& r) { r.add_output(node(r, "MatMul", {input(r), weight(r, {3, 5}, "w")}), "y"); });
  expect_fires("fuse-linear");
  expect_ops({"Transpose", "Linear"});
  EXPECT_EQ(graph().nodes()[0]->input(0)->name(), "w");
}

TEST_F(FuseLinearTest, MatMulWithATransposedWeight) {
  build([&](Rewriter& r) {
    Value* w = node(r, "Transpose", {weight(r, {5, 3}, "w")}, {{"perm", std::vector<int64_t>{1, 0}}});
    r.add_output(node(r, "MatMul", {input(r), w}), "y");
  });
  expect_fires("fuse-linear");
  expect_ops({"Linear"});
}

TEST_F(FuseLinearTest, BiasOnEitherSide) {
  build([&](Rewriter& r) {
    Value* product = node(r, "MatMul", {input(r), weight(r, {3, 5}, "w")});
    r.add_output(node(r, "Add", {weight(r, {5}, "b"), product}), "y");
  });
  expect_fires("fuse-linear");
  expect_ops({"Transpose", "Linear"});
  EXPECT_EQ(graph().nodes()[1]->input(2)->name(), "b");
}

TEST_F(FuseLinearTest, Gemm) {
  build([&](Rewriter& r) {
    Value* x = r.add_input("x", f32({sym("n"), 3}));
    r.add_output(node(r, "Gemm", {x, weight(r, {5, 3}, "w"), weight(r, {5}, "b")}, {{"transB", int64_t{1}}}),
                 "y");
  });
  expect_fires("fuse-linear");
  expect_ops({"Linear"});
}

TEST_F(FuseLinearTest, GemmThatScalesStays) {
  build([&](Rewriter& r) {
    Value* x = r.add_input("x", f32({sym("n"), 3}));
    r.add_output(node(r, "Gemm", {x, weight(r, {3, 5}, "w")}, {{"alpha", 0.5F}}), "y");
  });
  EXPECT_EQ(expect_no_match("fuse-linear").failures.size(), 1U);
}

TEST_F(FuseLinearTest, ProductOfTwoInputsStays) {
  build([&](Rewriter& r) {
    r.add_output(node(r, "MatMul", {input(r), r.add_input("z", f32({3, 5}))}), "y");
  });
  expect_no_match("fuse-linear");
}

TEST_F(FuseLinearTest, BatchedConstantStays) {
  build([&](Rewriter& r) { r.add_output(node(r, "MatMul", {input(r), weight(r, {2, 3, 5}, "w")}), "y"); });
  expect_no_match("fuse-linear");
}

// Angles of a rotary embedding are no layer.
TEST_F(FuseLinearTest, ProductOfPositionsStays) {
  build([&](Rewriter& r) {
    Value* positions = r.add_input("position_ids", i64({sym("b"), sym("s"), 1}));
    Value* floats = node(r, "Cast", {positions}, {{"to", int64_t{1}}});
    r.add_output(node(r, "MatMul", {floats, weight(r, {1, 4}, "inv_freq")}), "y");
  });
  EXPECT_EQ(expect_no_match("fuse-linear").failures.size(), 1U);
}

TEST_F(FuseLinearTest, ABiasOfAnotherLengthStaysOutside) {
  build([&](Rewriter& r) {
    Value* product = node(r, "MatMul", {input(r), weight(r, {3, 5}, "w")});
    r.add_output(node(r, "Add", {product, weight(r, {1}, "b")}), "y");
  });
  expect_fires("fuse-linear");
  expect_ops({"Transpose", "Linear", "Add"});
}

class FuseEmbeddingTest : public FuseLinearTest {};

TEST_F(FuseEmbeddingTest, LookUp) {
  build([&](Rewriter& r) {
    Value* ids = r.add_input("input_ids", i64({sym("b"), sym("s")}));
    // Within the table, whatever the ids are.
    Value* safe = node(r, "Mod", {ids, r.add_constant(Tensor::scalar<int64_t>(6))});
    r.add_output(node(r, "Gather", {weight(r, {6, 3}, "table"), safe}), "y");
  });
  expect_fires("fuse-embedding");
  expect_ops({"Mod", "Embedding"});
}

TEST_F(FuseEmbeddingTest, AlongAnotherAxisStays) {
  build([&](Rewriter& r) {
    Value* ids = r.add_input("input_ids", i64({2}));
    Value* safe = node(r, "Mod", {ids, r.add_constant(Tensor::scalar<int64_t>(3))});
    r.add_output(node(r, "Gather", {weight(r, {6, 3}, "table"), safe}, {{"axis", int64_t{1}}}), "y");
  });
  expect_no_match("fuse-embedding");
}

}  // namespace
}  // namespace quern::test
