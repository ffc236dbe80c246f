#include "tests/passes/pass_test.h"

namespace quern::test {
namespace {

using CommonSubexpressionsTest = PassTest;

TEST_F(CommonSubexpressionsTest, MergesNodesOfMergedInputs) {
  build([](Rewriter& r) {
    Value* x = r.add_input("x", f32({sym("n"), 2}));
    Value* sums[2];
    for (int i = 0; i < 2; ++i) {
      Value* c = r.add_constant(Tensor::from<float>({2}, {1, 2}), i == 0 ? "first" : "second");
      Value* add = r.add_node({.op = "Add", .inputs = {x, c}})->output();
      sums[i] = r.add_node({.op = "Tanh", .inputs = {add}})->output();
    }
    r.add_output(r.add_node({.op = "Mul", .inputs = {sums[0], sums[1]}})->output(), "y");
  });
  EXPECT_EQ(expect_fires("common-subexpressions").changes, 3);
  expect_ops({"Add", "Tanh", "Mul"});
  ASSERT_EQ(graph().constants().size(), 1u);
  EXPECT_EQ(graph().constants()[0]->name(), "first");
}

TEST_F(CommonSubexpressionsTest, DifferentAttributesContentsAndDtypesStay) {
  build([](Rewriter& r) {
    Value* x = r.add_input("x", f32({2, 2}));
    const auto add_constant = [&](Tensor tensor) { return r.add_constant(std::move(tensor)); };
    Value* y =
        r.add_node({.op = "Add", .inputs = {x, add_constant(Tensor::from<float>({2}, {1, 2}))}})->output();
    Value* z =
        r.add_node({.op = "Add", .inputs = {y, add_constant(Tensor::from<float>({2}, {1, 2.0000002F}))}})
            ->output();
    Value* w =
        r.add_node({.op = "Add", .inputs = {z, add_constant(Tensor::from<float>({1, 2}, {1, 2}))}})->output();
    Value* first = r.add_node({.op = "Shape", .inputs = {w}, .attributes = {{"end", int64_t{1}}}})->output();
    Value* second =
        r.add_node({.op = "Shape", .inputs = {w}, .attributes = {{"start", int64_t{1}}}})->output();
    r.add_output(w, "w");
    r.add_output(first, "a");
    r.add_output(second, "b");
  });
  expect_no_match("common-subexpressions");
}

TEST_F(CommonSubexpressionsTest, LargeConstantsThatDifferBetweenTheSamplesStay) {
  build([](Rewriter& r) {
    Value* x = r.add_input("x", f32({100000}));
    Tensor a = Tensor::zeros(DType::F32, {100000});
    Tensor b = Tensor::zeros(DType::F32, {100000});
    b.set(777, 1.0);  // a fingerprint looks at bytes 0..63, 6348.., ... only
    Value* sum = r.add_node({.op = "Add", .inputs = {x, r.add_constant(a)}})->output();
    r.add_output(r.add_node({.op = "Add", .inputs = {sum, r.add_constant(b)}})->output(), "y");
  });
  expect_no_match("common-subexpressions");
}

TEST_F(CommonSubexpressionsTest, RandomNumbersAndCachesStay) {
  build([](Rewriter& r) {
    Value* x = r.add_input("x", f32({2}));
    for (const char* name : {"a", "b"}) {
      r.add_output(
          r.add_node({.op = "RandomNormalLike", .inputs = {x}, .outputs = {{name, f32({2})}}})->output(),
          name);
    }
  });
  expect_no_match("common-subexpressions");
}

TEST_F(CommonSubexpressionsTest, NodesWithMoreOutputsServeThoseWithFewer) {
  build([](Rewriter& r) {
    Value* x = r.add_input("x", f32({4}));
    Value* splits[2];
    for (int i = 0; i < 2; ++i) {
      NodeSpec spec{.op = "Split", .inputs = {x}, .attributes = {{"num_outputs", int64_t{2}}}};
      spec.outputs = {OutputSpec{}, OutputSpec{}};
      splits[i] = r.add_node(std::move(spec))->output(static_cast<size_t>(i));
    }
    r.add_output(r.add_node({.op = "Add", .inputs = {splits[0], splits[1]}})->output(), "y");
  });
  expect_fires("common-subexpressions");
  expect_ops({"Split", "Add"});
}

}  // namespace
}  // namespace quern::test
