#include "tests/passes/pass_test.h"

namespace quern::test {
namespace {

class ShapeArithmeticTest : public PassTest {
 protected:
  // Gather(Shape(x), i), as a vector of one element.
  static Value* dim_of(Rewriter& r, Value* x, int64_t i) {
    Value* shape = r.add_node({.op = "Shape", .inputs = {x}})->output();
    Value* index = r.add_constant(Tensor::scalar<int64_t>(i));
    Value* scalar = r.add_node({.op = "Gather", .inputs = {shape, index}})->output();
    Value* axes = r.add_constant(Tensor::from<int64_t>({1}, {0}));
    return r.add_node({.op = "Unsqueeze", .inputs = {scalar, axes}})->output();
  }
  static Value* concat_of(Rewriter& r, std::vector<Value*> parts) {
    return r.add_node({.op = "Concat", .inputs = std::move(parts), .attributes = {{"axis", int64_t{0}}}})
        ->output();
  }
  std::vector<int64_t> target() {
    for (const Node* node : graph().nodes()) {
      if (node->is("Reshape") && node->input(1)->tensor()) return node->input(1)->tensor()->to_ints();
    }
    return {};
  }
};

TEST_F(ShapeArithmeticTest, SplittingHeadsBecomesAConstantTarget) {
  build([](Rewriter& r) {
    Value* x = r.add_input("x", f32({sym("batch"), sym("sequence"), 12}));
    Value* heads = r.add_constant(Tensor::from<int64_t>({1}, {3}));
    Value* size = r.add_constant(Tensor::from<int64_t>({1}, {4}));
    Value* shape = concat_of(r, {dim_of(r, x, 0), dim_of(r, x, 1), heads, size});
    r.add_output(r.add_node({.op = "Reshape", .inputs = {x, shape}})->output(), "y");
  });
  expect_fires("shape-arithmetic");
  EXPECT_EQ(target(), (std::vector<int64_t>{0, 0, 3, 4}));
  run("dead-code");
  expect_ops({"Reshape"});
}

TEST_F(ShapeArithmeticTest, OneMovedDimensionIsInferred) {
  build([](Rewriter& r) {
    Value* x = r.add_input("x", f32({sym("batch"), sym("sequence"), 12}));
    Value* both = r.add_node({.op = "Mul", .inputs = {dim_of(r, x, 0), dim_of(r, x, 1)}})->output();
    Value* shape = concat_of(r, {both, dim_of(r, x, 2)});
    r.add_output(r.add_node({.op = "Reshape", .inputs = {x, shape}})->output(), "y");
  });
  expect_fires("shape-arithmetic");
  EXPECT_EQ(target(), (std::vector<int64_t>{-1, 12}));
}

TEST_F(ShapeArithmeticTest, TwoMovedDimensionsStayComputed) {
  build([](Rewriter& r) {
    Value* x = r.add_input("x", f32({sym("batch"), sym("sequence"), 12}));
    Value* shape = concat_of(r, {dim_of(r, x, 1), dim_of(r, x, 0), dim_of(r, x, 2)});
    r.add_output(r.add_node({.op = "Reshape", .inputs = {x, shape}})->output(), "y");
  });
  const passes::PassReport report = run("shape-arithmetic");
  EXPECT_TRUE(has_reason(report, "more than one dimension"));
  EXPECT_TRUE(target().empty());
}

TEST_F(ShapeArithmeticTest, AZeroDimensionIsNotMistakenForACopy) {
  build([](Rewriter& r) {
    Value* x = r.add_input("x", f32({sym("n"), 0}));
    Value* zero = r.add_constant(Tensor::from<int64_t>({1}, {0}));
    Value* shape = concat_of(r, {dim_of(r, x, 1), dim_of(r, x, 0)});
    Node* reshape =
        r.add_node({.op = "Reshape", .inputs = {x, shape}, .attributes = {{"allowzero", int64_t{1}}}});
    r.add_output(reshape->output(), "y");
    r.add_output(zero, "unused");
  });
  run("shape-arithmetic");
  EXPECT_EQ(target(), (std::vector<int64_t>{0, -1}));
}

// Such a model fails when it runs; the pass is not to blame for it, as it was when it wrote the constant.
TEST_F(ShapeArithmeticTest, AContradictionIsLeftAlone) {
  build([](Rewriter& r) {
    Value* x = r.add_input("x", f32({sym("batch"), sym("sequence"), 31}));
    Value* heads = r.add_constant(Tensor::from<int64_t>({1}, {4}));
    Value* size = r.add_constant(Tensor::from<int64_t>({1}, {8}));
    Value* shape = concat_of(r, {dim_of(r, x, 0), dim_of(r, x, 1), heads, size});
    r.add_output(r.add_node({.op = "Reshape", .inputs = {x, shape}})->output(), "y");
  });
  const passes::PassReport report = run("shape-arithmetic");
  EXPECT_TRUE(has_reason(report, "cannot take the shape"));
  EXPECT_TRUE(target().empty());
}

TEST_F(ShapeArithmeticTest, EqualElementsAreComputedOnce) {
  build([](Rewriter& r) {
    Value* x = r.add_input("x", f32({sym("batch"), sym("sequence"), 12}));
    Value* first = dim_of(r, x, 1);
    Value* hidden = r.add_node({.op = "Tanh", .inputs = {x}})->output();
    Value* second = dim_of(r, hidden, 1);
    r.add_output(r.add_node({.op = "Mul", .inputs = {first, second}})->output(), "y");
    r.add_output(hidden, "hidden");
  });
  expect_fires("shape-arithmetic");
  const Node* product = graph().outputs()[0].value->producer();
  EXPECT_EQ(product->input(0), product->input(1));
}

}  // namespace
}  // namespace quern::test
