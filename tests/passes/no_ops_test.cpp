#include "tests/passes/pass_test.h"

namespace quern::test {
namespace {

class NoOpsTest : public PassTest {
 protected:
  // y = Neg(op(x, inputs...)) with x f32 [n, 4].
  void build_one(const std::string& op, std::vector<Constant> constants, Attributes attributes = {},
                 bool first = false, int opset = 0) {
    build([&](Rewriter& r) {
      Value* x = r.add_input("x", f32({sym("n"), 4}));
      std::vector<Value*> inputs;
      for (Constant& constant : constants) inputs.push_back(r.add_constant(std::move(constant)));
      inputs.insert(first ? inputs.end() : inputs.begin(), x);
      Node* node =
          r.add_node({.op = op, .opset = opset, .inputs = inputs, .attributes = std::move(attributes)});
      r.add_output(r.add_node({.op = "Neg", .inputs = {node->output()}})->output(), "y");
    });
  }
  void expect_gone() {
    expect_fires("no-ops");
    expect_ops({"Neg"});
    EXPECT_EQ(graph().nodes()[0]->input(0)->name(), "x");
  }
};

Constant ints(std::initializer_list<int64_t> values) {
  return Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, values);
}
Constant scalar(float value) {
  return Tensor::scalar(value);
}

TEST_F(NoOpsTest, NeutralElements) {
  for (const auto& [op, neutral, both] : {std::tuple{"Add", 0.0F, true},
                                          {"Sub", 0.0F, false},
                                          {"Mul", 1.0F, true},
                                          {"Div", 1.0F, false},
                                          {"Pow", 1.0F, false}}) {
    SCOPED_TRACE(op);
    build_one(op, {scalar(neutral)});
    expect_gone();
    build_one(op, {scalar(0.5F)});
    expect_no_match("no-ops");
    build_one(op, {scalar(neutral)}, {}, true);
    if (both) {
      expect_gone();
    } else {
      expect_no_match("no-ops");
    }
  }
}

TEST_F(NoOpsTest, NeutralElementsThatWidenStay) {
  build_one("Mul", {Tensor::from<float>({2, 1, 1}, {1, 1})});
  EXPECT_TRUE(has_reason(expect_no_match("no-ops"), "widens"));
}

TEST_F(NoOpsTest, Passers) {
  build_one("Identity", {});
  expect_gone();
  build_one("Dropout", {scalar(0.5F)});
  expect_gone();
  build_one("Dropout", {scalar(0.5F), Tensor::scalar(false)});
  expect_gone();
  build_one("Cast", {}, {{"to", int64_t{1}}});
  expect_gone();
  build_one("Transpose", {}, {{"perm", std::vector<int64_t>{0, 1}}});
  expect_gone();
  build_one("Concat", {}, {{"axis", int64_t{1}}});
  expect_gone();
  build_one("Sum", {});
  expect_gone();
}

TEST_F(NoOpsTest, ShapesThatStay) {
  build_one("Reshape", {ints({0, 4})});
  expect_gone();
  build_one("Reshape", {ints({-1, 4})});
  expect_gone();
  build_one("Slice", {ints({0}), ints({INT64_MAX}), ints({1})});
  expect_gone();
  build_one("Slice", {ints({0}), ints({4}), ints({1}), ints({1})});
  expect_gone();
  build_one("Expand", {ints({1, 4})});
  expect_gone();
  build_one("Pad", {ints({0, 0, 0, 0})});
  expect_gone();
}

TEST_F(NoOpsTest, ShapesAndOrdersThatChangeStay) {
  build_one("Reshape", {ints({2, -1})});
  expect_no_match("no-ops");
  build_one("Transpose", {}, {{"perm", std::vector<int64_t>{1, 0}}});
  expect_no_match("no-ops");
  build_one("Transpose", {});
  expect_no_match("no-ops");
  build_one("Slice", {ints({1}), ints({3}), ints({1})});
  expect_no_match("no-ops");
  build_one("Slice", {ints({-1}), ints({-5}), ints({1}), ints({-1})});
  EXPECT_TRUE(has_reason(expect_no_match("no-ops"), "steps"));
  build_one("Cast", {}, {{"to", int64_t{10}}});
  expect_no_match("no-ops");
  build_one("Pad", {ints({0, 0, 0, 1})});
  expect_no_match("no-ops");
}

TEST_F(NoOpsTest, ChainsCollapseAtOnceUpToAnOutput) {
  build([](Rewriter& r) {
    Value* x = r.add_input("x", f32({sym("n"), 4}));
    Value* last = x;
    for (int i = 0; i < 4; ++i) last = r.add_node({.op = "Identity", .inputs = {last}})->output();
    r.add_output(last, "y");
    r.add_output(r.add_node({.op = "Tanh", .inputs = {last}})->output(), "z");
  });
  EXPECT_EQ(expect_fires("no-ops").changes, 4);
  expect_ops({"Tanh"});
  EXPECT_EQ(graph().outputs()[0].name, "y");
  EXPECT_EQ(graph().outputs()[0].value, graph().inputs()[0]);
}

TEST_F(NoOpsTest, ConcatDropsEmptyInputs) {
  build([](Rewriter& r) {
    Value* x = r.add_input("x", f32({sym("n"), 4}));
    Value* same = r.add_node({.op = "Identity", .inputs = {x}})->output();
    Value* empty = r.add_constant(Tensor::zeros(DType::F32, {0, 4}), "empty");
    Node* two =
        r.add_node({.op = "Concat", .inputs = {same, empty, x}, .attributes = {{"axis", int64_t{0}}}});
    r.add_output(two->output(), "y");
  });
  expect_fires("no-ops");
  expect_ops({"Concat"});
  EXPECT_EQ(graph().nodes()[0]->inputs().size(), 2u);
}

TEST_F(NoOpsTest, WhereOfAConstantConditionChooses) {
  build([](Rewriter& r) {
    Value* x = r.add_input("x", f32({sym("n"), 4}));
    Value* other = r.add_constant(Tensor::scalar(0.0F), "other");
    Value* yes = r.add_constant(Tensor::from<bool>({1}, {true}), "yes");
    r.add_output(r.add_node({.op = "Where", .inputs = {yes, x, other}})->output(), "y");
  });
  expect_fires("no-ops");
  expect_ops({});
}

}  // namespace
}  // namespace quern::test
