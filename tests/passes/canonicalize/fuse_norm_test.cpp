#include "tests/passes/pass_test.h"

namespace quern::test {
namespace {

class FuseNormTest : public PassTest {
 protected:
  Value* scalar(Rewriter& r, float value) { return r.add_constant(Tensor::scalar<float>(value)); }
  Value* vector(Rewriter& r, std::initializer_list<float> values, std::string name = {}) {
    return r.add_constant(Tensor::from<float>({static_cast<int64_t>(values.size())}, values),
                          std::move(name));
  }
  Value* node(Rewriter& r, const char* op, std::vector<Value*> inputs, Attributes attributes = {},
              int opset = 17) {
    return r
        .add_node(
            {.op = op, .opset = opset, .inputs = std::move(inputs), .attributes = std::move(attributes)})
        ->output();
  }
  Value* mean(Rewriter& r, Value* x, int64_t axis = -1) {
    return node(r, "ReduceMean", {x}, {{"axes", std::vector<int64_t>{axis}}, {"keepdims", int64_t{1}}});
  }
  Value* input(Rewriter& r) { return r.add_input("x", f32({sym("b"), sym("s"), 4})); }
};

TEST_F(FuseNormTest, RmsByPowAndReciprocalRoot) {
  build([&](Rewriter& r) {
    Value* x = input(r);
    Value* square = node(r, "Pow", {x, scalar(r, 2)});
    Value* root = node(r, "Sqrt", {node(r, "Add", {mean(r, square), scalar(r, 1e-5F)})});
    Value* normed = node(r, "Mul", {x, node(r, "Div", {scalar(r, 1), root})});
    r.add_output(node(r, "Mul", {vector(r, {1, 2, 3, 4}, "norm.weight"), normed}), "y");
  });
  expect_fires("fuse-norm");
  expect_ops({"RMSNormalization"});
  EXPECT_EQ(graph().nodes()[0]->input(1)->name(), "norm.weight");
  EXPECT_FLOAT_EQ(graph().nodes()[0]->float_attribute("epsilon", 0), 1e-5F);
}

TEST_F(FuseNormTest, RmsByMulAndDivWithoutWeight) {
  build([&](Rewriter& r) {
    Value* x = input(r);
    Value* root = node(r, "Sqrt", {node(r, "Add", {scalar(r, 1e-6F), mean(r, node(r, "Mul", {x, x}))})});
    r.add_output(node(r, "Div", {x, root}), "y");
  });
  expect_fires("fuse-norm");
  expect_ops({"RMSNormalization"});
}

TEST_F(FuseNormTest, RmsByNegativePower) {
  build([&](Rewriter& r) {
    Value* x = input(r);
    Value* sum = node(r, "Add", {mean(r, node(r, "Mul", {x, x})), scalar(r, 1e-6F)});
    Value* normed = node(r, "Mul", {node(r, "Pow", {sum, scalar(r, -0.5F)}), x});
    r.add_output(node(r, "Mul", {normed, vector(r, {4, 3, 2, 1})}), "y");
  });
  expect_fires("fuse-norm");
  expect_ops({"RMSNormalization"});
}

TEST_F(FuseNormTest, RmsOfHalfComputedInSingle) {
  build([&](Rewriter& r) {
    Value* x = r.add_input("x", {DType::F16, SymShape{sym("s"), 4}});
    Value* wide = node(r, "Cast", {x}, {{"to", int64_t{1}}});
    Value* root =
        node(r, "Sqrt", {node(r, "Add", {mean(r, node(r, "Pow", {wide, scalar(r, 2)})), scalar(r, 1e-5F)})});
    Value* normed = node(r, "Mul", {wide, node(r, "Reciprocal", {root})});
    Value* half = node(r, "Cast", {normed}, {{"to", int64_t{10}}});
    Value* weight = r.add_constant(Tensor::from<float>({4}, {1, 2, 3, 4}).cast(DType::F16));
    r.add_output(node(r, "Mul", {weight, half}), "y");
  });
  expect_fires("fuse-norm");
  expect_ops({"RMSNormalization"});
  EXPECT_EQ(graph().nodes()[0]->input(0)->dtype(), DType::F16);
}

TEST_F(FuseNormTest, LayerNorm) {
  build([&](Rewriter& r) {
    Value* x = input(r);
    Value* d = node(r, "Sub", {x, mean(r, x)});
    Value* root =
        node(r, "Sqrt", {node(r, "Add", {mean(r, node(r, "Pow", {d, scalar(r, 2)})), scalar(r, 1e-12F)})});
    Value* scaled = node(r, "Mul", {node(r, "Div", {d, root}), vector(r, {1, 2, 3, 4})});
    r.add_output(node(r, "Add", {scaled, vector(r, {0.5F, 0, 1, 2})}), "y");
  });
  expect_fires("fuse-norm");
  expect_ops({"LayerNormalization"});
  EXPECT_EQ(graph().nodes()[0]->inputs().size(), 3U);
}

TEST_F(FuseNormTest, NotOverAnotherAxis) {
  build([&](Rewriter& r) {
    Value* x = input(r);
    Value* root = node(r, "Sqrt", {node(r, "Add", {mean(r, node(r, "Mul", {x, x}), 1), scalar(r, 1e-6F)})});
    r.add_output(node(r, "Div", {x, root}), "y");
  });
  expect_no_match("fuse-norm");
}

TEST_F(FuseNormTest, NotOfAnotherValue) {
  build([&](Rewriter& r) {
    Value* x = input(r);
    Value* z = r.add_input("z", f32({sym("b"), sym("s"), 4}));
    Value* root = node(r, "Sqrt", {node(r, "Add", {mean(r, node(r, "Mul", {x, x})), scalar(r, 1e-6F)})});
    r.add_output(node(r, "Div", {z, root}), "y");
  });
  EXPECT_FALSE(expect_no_match("fuse-norm").failures.empty());
}

TEST_F(FuseNormTest, NotACubeInTheMean) {
  build([&](Rewriter& r) {
    Value* x = input(r);
    Value* cube = node(r, "Pow", {x, scalar(r, 4)});
    r.add_output(node(r, "Div", {x, node(r, "Sqrt", {node(r, "Add", {mean(r, cube), scalar(r, 1e-6F)})})}),
                 "y");
  });
  expect_no_match("fuse-norm");
}

// The weight that follows belongs to the norm only if there is one number per feature.
TEST_F(FuseNormTest, LeavesAScaleByTokenAlone) {
  build([&](Rewriter& r) {
    Value* x = input(r);
    Value* root = node(r, "Sqrt", {node(r, "Add", {mean(r, node(r, "Mul", {x, x})), scalar(r, 1e-6F)})});
    Value* z = r.add_input("z", f32({sym("b"), sym("s"), 1}));
    r.add_output(node(r, "Mul", {node(r, "Div", {x, root}), z}), "y");
  });
  expect_fires("fuse-norm");
  expect_ops({"RMSNormalization", "Mul"});
}

}  // namespace
}  // namespace quern::test
