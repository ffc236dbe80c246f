#include "tests/passes/pass_test.h"
#include "tests/support/expect_error.h"

namespace quern::test {
namespace {

using ConstantFoldingTest = PassTest;

TEST_F(ConstantFoldingTest, FoldsChainsIntoOneConstant) {
  build([](Rewriter& r) {
    Value* x = r.add_input("x", f32({2}));
    Value* a = r.add_constant(Tensor::from<float>({2}, {1, 2}), "a");
    Value* b = r.add_constant(Tensor::from<float>({2}, {3, 4}), "b");
    Node* sum = r.add_node({.op = "Add", .inputs = {a, b}, .outputs = {{"sum"}}});
    Node* root = r.add_node({.op = "Tanh", .inputs = {sum->output()}, .outputs = {{"tanh"}}});
    r.add_output(r.add_node({.op = "Mul", .inputs = {x, root->output()}})->output(), "y");
  });
  EXPECT_EQ(expect_fires("constant-folding").changes, 1);
  expect_ops({"Mul"});
  ASSERT_EQ(graph().constants().size(), 1u);
  EXPECT_EQ(graph().constants()[0]->name(), "tanh");
}

TEST_F(ConstantFoldingTest, AWeightKeepsItsName) {
  build([](Rewriter& r) {
    Value* x = r.add_input("x", f32({2, 2}));
    Value* w = r.add_constant(Tensor::from<float>({2, 2}, {1, 2, 3, 4}), "layer.weight");
    Node* negated = r.add_node({.op = "Sigmoid", .inputs = {w}, .outputs = {{"onnx::MatMul_7"}}});
    Node* squashed =
        r.add_node({.op = "Tanh", .inputs = {negated->output()}, .outputs = {{"onnx::MatMul_8"}}});
    r.add_output(r.add_node({.op = "Add", .inputs = {x, squashed->output()}})->output(), "y");
  });
  expect_fires("constant-folding");
  ASSERT_EQ(graph().constants().size(), 1u);
  EXPECT_EQ(graph().constants()[0]->name(), "layer.weight");
}

TEST_F(ConstantFoldingTest, ASharedWeightKeepsItsNameToo) {
  build([](Rewriter& r) {
    Value* x = r.add_input("x", f32({2}));
    Value* w = r.add_constant(Tensor::from<float>({2}, {1, 2}), "layer.weight");
    Node* negated = r.add_node({.op = "Sigmoid", .inputs = {w}, .outputs = {{"negated"}}});
    Node* both = r.add_node({.op = "Add", .inputs = {x, negated->output()}});
    r.add_output(r.add_node({.op = "Mul", .inputs = {both->output(), w}})->output(), "y");
  });
  expect_fires("constant-folding");
  EXPECT_NE(graph().find_value("layer.weight"), nullptr);
  EXPECT_NE(graph().find_value("negated"), nullptr);
}

TEST_F(ConstantFoldingTest, LeavesWhatIsTooLarge) {
  build([](Rewriter& r) {
    Value* x = r.add_input("x", f32({100}));
    Value* w = r.add_constant(Tensor::zeros(DType::F32, {100}), "w");
    Node* negated = r.add_node({.op = "Sigmoid", .inputs = {w}});
    r.add_output(r.add_node({.op = "Add", .inputs = {x, negated->output()}})->output(), "y");
  });
  EXPECT_TRUE(has_reason(expect_no_match("constant-folding", {{"max-bytes", 399}}), "more than 399 bytes"));
  expect_fires("constant-folding", {{"max-bytes", 400}});
}

TEST_F(ConstantFoldingTest, StopsAtItsBudget) {
  build([](Rewriter& r) {
    Value* sum = r.add_input("x", f32({100}));
    for (int i = 0; i < 20; ++i) {
      Value* w = r.add_constant(Tensor::from<float>({1}, {static_cast<float>(i)}));
      Value* big = r.add_constant(Tensor::zeros(DType::F32, {100}));
      Node* wide = r.add_node({.op = "Add", .inputs = {w, big}});
      sum = r.add_node({.op = "Add", .inputs = {sum, wide->output()}})->output();
    }
    r.add_output(sum, "y");
  });
  const passes::PassReport report = run("constant-folding", {{"max-bytes", 400}, {"max-total-bytes", 0}});
  EXPECT_EQ(report.changes, 4);
}

TEST_F(ConstantFoldingTest, FoldsElementsThatShapeInferenceKnows) {
  build([](Rewriter& r) {
    Value* x = r.add_input("x", f32({sym("n"), 8, 3}));
    Node* shape = r.add_node({.op = "Shape", .inputs = {x}, .attributes = {{"start", int64_t{1}}}});
    Value* two = r.add_constant(Tensor::from<int64_t>({2}, {2, 2}), "two");
    Node* doubled = r.add_node({.op = "Mul", .inputs = {shape->output(), two}, .outputs = {{"doubled"}}});
    r.add_output(doubled->output(), "y");
  });
  expect_fires("constant-folding");
  EXPECT_TRUE(graph().nodes().empty());
  EXPECT_EQ(graph().outputs()[0].value->tensor()->to_ints(), (std::vector<int64_t>{16, 6}));
}

TEST_F(ConstantFoldingTest, LeavesSymbolicElementsAndRandomNumbers) {
  numeric_ = false;  // random numbers differ
  build([](Rewriter& r) {
    Value* x = r.add_input("x", f32({sym("n"), 8}));
    r.add_output(r.add_node({.op = "Shape", .inputs = {x}})->output(), "shape");
    Value* like = r.add_constant(Tensor::zeros(DType::F32, {2}), "like");
    Node* random = r.add_node({.op = "RandomNormalLike", .inputs = {like}, .outputs = {{"noise", f32({2})}}});
    r.add_output(random->output(), "noise");
  });
  EXPECT_TRUE(has_reason(expect_no_match("constant-folding"), "another result each time"));
}

TEST_F(ConstantFoldingTest, RefusesNegativeLimits) {
  build([](Rewriter& r) { r.add_output(r.add_input("x", f32({2})), "y"); });
  EXPECT_QUERN_ERROR(run("constant-folding", {{"max-bytes", -1}}), ErrorCode::InvalidArgument, "max-bytes");
}

}  // namespace
}  // namespace quern::test
