#include "tests/passes/pass_test.h"

namespace quern::test {
namespace {

class FuseSkipNormTest : public PassTest {
 protected:
  Value* input(Rewriter& r, const char* name) { return r.add_input(name, f32({sym("tokens"), 4})); }
  Value* vector(Rewriter& r, std::initializer_list<float> values) {
    return r.add_constant(Tensor::from<float>({static_cast<int64_t>(values.size())}, values));
  }
  Value* norm(Rewriter& r, Value* x) {
    return r
        .add_node({.op = "RMSNormalization",
                   .inputs = {x, vector(r, {1, 2, 3, 4})},
                   .attributes = {{"epsilon", 1e-5F}, {"axis", int64_t{-1}}}})
        ->output();
  }
  Value* node(Rewriter& r, const char* op, std::vector<Value*> inputs) {
    return r.add_node({.op = op, .inputs = std::move(inputs)})->output();
  }
};

TEST_F(FuseSkipNormTest, GivesTheSumToo) {
  build([&](Rewriter& r) {
    Value* sum = node(r, "Add", {input(r, "x"), input(r, "y")});
    r.add_output(node(r, "Add", {sum, norm(r, sum)}), "z");
  });
  expect_fires("fuse-skip-norm");
  expect_ops({"SkipSimplifiedLayerNormalization", "Add"});
  EXPECT_EQ(graph().nodes()[0]->outputs().size(), 4U);
}

TEST_F(FuseSkipNormTest, PutsTheOlderOperandFirst) {
  build([&](Rewriter& r) {
    Value* x = input(r, "x");
    r.add_output(norm(r, node(r, "Add", {node(r, "Relu", {x}), x})), "z");
  });
  expect_fires("fuse-skip-norm");
  expect_ops({"Relu", "SkipSimplifiedLayerNormalization"});
  EXPECT_EQ(graph().nodes()[1]->input(0)->name(), "x");
  EXPECT_EQ(graph().nodes()[1]->outputs().size(), 1U);
}

TEST_F(FuseSkipNormTest, LayerNormWithBias) {
  build([&](Rewriter& r) {
    Value* sum = node(r, "Add", {input(r, "x"), input(r, "y")});
    r.add_output(r.add_node({.op = "LayerNormalization",
                             .inputs = {sum, vector(r, {1, 2, 3, 4}), vector(r, {0, 1, 0, 1})},
                             .attributes = {{"axis", int64_t{-1}}}})
                     ->output(),
                 "z");
  });
  expect_fires("fuse-skip-norm");
  expect_ops({"SkipLayerNormalization"});
  EXPECT_FLOAT_EQ(graph().nodes()[0]->float_attribute("epsilon", 0), 1e-5F);
}

TEST_F(FuseSkipNormTest, TwoNormsOfOneSum) {
  build([&](Rewriter& r) {
    Value* sum = node(r, "Add", {input(r, "x"), input(r, "y")});
    r.add_output(node(r, "Mul", {norm(r, sum), norm(r, sum)}), "z");
  });
  expect_fires("fuse-skip-norm");
  expect_ops({"SkipSimplifiedLayerNormalization", "RMSNormalization", "Mul"});
}

TEST_F(FuseSkipNormTest, ABroadcastStays) {
  build([&](Rewriter& r) {
    Value* sum = node(r, "Add", {input(r, "x"), r.add_input("y", f32({sym("tokens"), 1}))});
    r.add_output(norm(r, sum), "z");
  });
  EXPECT_EQ(expect_no_match("fuse-skip-norm").failures.size(), 1U);
}

TEST_F(FuseSkipNormTest, AConstantStays) {
  build([&](Rewriter& r) {
    Value* x = r.add_input("x", f32({1, 4}));
    Value* sum = node(r, "Add", {x, r.add_constant(Tensor::from<float>({1, 4}, {1, 2, 3, 4}))});
    r.add_output(norm(r, sum), "z");
  });
  expect_no_match("fuse-skip-norm");
}

}  // namespace
}  // namespace quern::test
