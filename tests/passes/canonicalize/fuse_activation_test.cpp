#include "tests/passes/pass_test.h"

namespace quern::test {
namespace {

class FuseActivationTest : public PassTest {
 protected:
  Value* scalar(Rewriter& r, float value) { return r.add_constant(Tensor::scalar<float>(value)); }
  Value* node(Rewriter& r, const char* op, std::vector<Value*> inputs, Attributes attributes = {}) {
    return r.add_node({.op = op, .inputs = std::move(inputs), .attributes = std::move(attributes)})->output();
  }
  // Builds y = body(x) between Relus, so that x is no graph input.
  template <class Body>
  void build_of(Body body) {
    build([&](Rewriter& r) {
      Value* x = node(r, "Relu", {r.add_input("x", f32({sym("n"), 4}))});
      r.add_output(body(r, x), "y");
    });
  }
};

TEST_F(FuseActivationTest, ErfGelu) {
  build_of([&](Rewriter& r, Value* x) {
    Value* erf = node(r, "Erf", {node(r, "Div", {x, scalar(r, 1.4142135F)})});
    Value* gate = node(r, "Add", {erf, scalar(r, 1)});
    return node(r, "Mul", {node(r, "Mul", {x, gate}), scalar(r, 0.5F)});
  });
  expect_fires("fuse-activation");
  expect_ops({"Relu", "Gelu"});
  EXPECT_EQ(graph().nodes()[1]->string_attribute("approximate", ""), "none");
}

TEST_F(FuseActivationTest, ErfGeluInAnotherOrder) {
  build_of([&](Rewriter& r, Value* x) {
    Value* half = node(r, "Mul", {scalar(r, 0.5F), x});
    Value* erf = node(r, "Erf", {node(r, "Mul", {x, scalar(r, 0.70710678F)})});
    return node(r, "Mul", {half, node(r, "Add", {scalar(r, 1), erf})});
  });
  expect_fires("fuse-activation");
  expect_ops({"Relu", "Gelu"});
}

TEST_F(FuseActivationTest, TanhGeluByPow) {
  build_of([&](Rewriter& r, Value* x) {
    Value* cube = node(r, "Mul", {node(r, "Pow", {x, scalar(r, 3)}), scalar(r, 0.044715F)});
    Value* inner = node(r, "Mul", {node(r, "Add", {x, cube}), scalar(r, 0.7978846F)});
    Value* gate = node(r, "Add", {node(r, "Tanh", {inner}), scalar(r, 1)});
    return node(r, "Mul", {node(r, "Mul", {x, scalar(r, 0.5F)}), gate});
  });
  expect_fires("fuse-activation");
  expect_ops({"Relu", "Gelu"});
  EXPECT_EQ(graph().nodes()[1]->string_attribute("approximate", ""), "tanh");
}

TEST_F(FuseActivationTest, TanhGeluFactored) {
  build_of([&](Rewriter& r, Value* x) {
    Value* square = node(r, "Mul", {node(r, "Mul", {x, scalar(r, 0.044715F)}), x});
    Value* factor = node(r, "Mul", {x, scalar(r, 0.79788456F)});
    Value* inner = node(r, "Mul", {factor, node(r, "Add", {scalar(r, 1), square})});
    Value* gate = node(r, "Add", {scalar(r, 1), node(r, "Tanh", {inner})});
    return node(r, "Mul", {node(r, "Mul", {x, gate}), scalar(r, 0.5F)});
  });
  expect_fires("fuse-activation");
  expect_ops({"Relu", "Gelu"});
  EXPECT_EQ(graph().nodes()[1]->string_attribute("approximate", ""), "tanh");
}

TEST_F(FuseActivationTest, Swish) {
  build_of([&](Rewriter& r, Value* x) { return node(r, "Mul", {x, node(r, "Sigmoid", {x})}); });
  expect_fires("fuse-activation");
  expect_ops({"Relu", "Swish"});
  EXPECT_EQ(graph().nodes()[1]->float_attribute("alpha", 0), 1);
}

TEST_F(FuseActivationTest, QuickGelu) {
  build_of([&](Rewriter& r, Value* x) {
    return node(r, "Mul", {x, node(r, "Sigmoid", {node(r, "Mul", {x, scalar(r, 1.702F)})})});
  });
  expect_fires("fuse-activation");
  expect_ops({"Relu", "Swish"});
  EXPECT_EQ(graph().nodes()[1]->float_attribute("alpha", 0), 1.702F);
}

// A gate beside the Swish stays outside it.
TEST_F(FuseActivationTest, GatedSwish) {
  build_of([&](Rewriter& r, Value* x) {
    Value* up = r.add_input("up", f32({sym("n"), 4}));
    return node(r, "Mul", {node(r, "Mul", {x, node(r, "Sigmoid", {x})}), up});
  });
  expect_fires("fuse-activation");
  expect_ops({"Relu", "Swish", "Mul"});
}

TEST_F(FuseActivationTest, NotAnotherFunctionOfSigmoid) {
  build_of([&](Rewriter& r, Value* x) {
    return node(r, "Mul", {x, node(r, "Add", {node(r, "Sigmoid", {x}), scalar(r, 1)})});
  });
  const auto report = expect_no_match("fuse-activation");
  EXPECT_EQ(report.failures.size(), 1U);
}

TEST_F(FuseActivationTest, NotGeluWithAnotherConstant) {
  build_of([&](Rewriter& r, Value* x) {
    Value* erf = node(r, "Erf", {node(r, "Div", {x, scalar(r, 1.5F)})});
    return node(r, "Mul", {node(r, "Mul", {x, node(r, "Add", {erf, scalar(r, 1)})}), scalar(r, 0.5F)});
  });
  expect_no_match("fuse-activation");
}

TEST_F(FuseActivationTest, NotAGateByAnotherValue) {
  build_of([&](Rewriter& r, Value* x) {
    return node(r, "Mul", {r.add_input("z", f32({sym("n"), 4})), node(r, "Sigmoid", {x})});
  });
  expect_no_match("fuse-activation");
}

}  // namespace
}  // namespace quern::test
