#include "tests/passes/pass_test.h"

namespace quern::test {
namespace {

using DeadCodeTest = PassTest;

TEST_F(DeadCodeTest, RemovesChainsAndTheirConstants) {
  build([](Rewriter& r) {
    Value* x = r.add_input("x", f32({2}));
    Value* c = r.add_constant(Tensor::from<float>({2}, {1, 2}), "c");
    Node* used = r.add_node({.op = "Sigmoid", .inputs = {x}});
    Node* dead = r.add_node({.op = "Add", .inputs = {used->output(), c}});
    r.add_node({.op = "Tanh", .inputs = {dead->output()}});
    r.add_output(used->output(), "y");
  });
  EXPECT_EQ(expect_fires("dead-code").changes, 3);  // two nodes and a constant
  expect_ops({"Sigmoid"});
  EXPECT_TRUE(graph().constants().empty());
}

TEST_F(DeadCodeTest, KeepsUnusedInputsAndPartlyUsedNodes) {
  build([](Rewriter& r) {
    r.add_input("unused", f32({2}));
    Value* x = r.add_input("x", f32({4}));
    Node* split = r.add_node({.op = "Split",
                              .inputs = {x},
                              .attributes = {{"num_outputs", int64_t{2}}},
                              .outputs = {OutputSpec{}, OutputSpec{}}});
    r.add_output(split->output(1), "y");
  });
  expect_no_match("dead-code");
  EXPECT_EQ(graph().inputs().size(), 2u);
}

}  // namespace
}  // namespace quern::test
