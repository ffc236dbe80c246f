#include "ir/graph.h"

#include <gtest/gtest.h>

#include "ir/rewriter.h"
#include "ir/shape_inference.h"
#include "ir/verifier.h"

namespace quern {
namespace {

ValueType f32(SymShape shape) {
  return {DType::F32, std::move(shape)};
}

// y = Relu(x + c)
struct Small {
  Graph graph;
  Value* x;
  Value* c;
  Node* add;
  Node* relu;

  Small() {
    Rewriter rewriter(graph);
    x = rewriter.add_input("x", f32({Dim::symbol("n"), 2}));
    c = rewriter.add_constant(Tensor::from<float>({2}, {1.0F, 2.0F}), "c");
    add = rewriter.add_node({.op = "Add", .inputs = {x, c}, .outputs = {{"sum"}}});
    relu = rewriter.add_node({.op = "Relu", .inputs = {add->output()}, .outputs = {{"y"}}});
    rewriter.add_output(relu->output(), "y");
    rewriter.commit();
  }
};

TEST(Graph, BuildsWithInferredTypesAndVerifies) {
  const Small s;
  verify(s.graph);
  EXPECT_EQ(to_string(s.relu->output()->type()), "f32 [n, 2]");
  EXPECT_EQ(s.x->uses().size(), 1u);
  EXPECT_EQ(s.graph.nodes().size(), 2u);
}

TEST(Rewriter, WithoutCommitNothingChanges) {
  Small s;
  const std::string before = to_text(s.graph);
  {
    Rewriter rewriter(s.graph);
    Node* tanh = rewriter.add_node({.op = "Tanh", .inputs = {s.add->output()}});
    rewriter.replace(s.relu->output(), tanh->output());
  }
  EXPECT_EQ(to_text(s.graph), before);
  verify(s.graph);
}

TEST(Rewriter, ReplacementTakesOverTheNameAndRemovesTheDead) {
  Small s;
  Rewriter rewriter(s.graph);
  Node* tanh = rewriter.add_node({.op = "Tanh", .inputs = {s.x}});
  rewriter.replace(s.relu->output(), tanh->output());
  EXPECT_TRUE(rewriter.commit());
  verify(s.graph);
  ASSERT_EQ(s.graph.nodes().size(), 1u);
  EXPECT_EQ(s.graph.outputs()[0].value->name(), "y");
  EXPECT_TRUE(s.graph.constants().empty());
}

TEST(Rewriter, WrapsAValueWithoutMakingACycle) {
  Small s;
  Rewriter rewriter(s.graph);
  Node* tanh = rewriter.add_node({.op = "Tanh", .inputs = {s.add->output()}});
  rewriter.replace(s.add->output(), tanh->output());
  rewriter.commit();
  verify(s.graph);
  EXPECT_EQ(s.relu->input(0)->producer(), tanh);
  EXPECT_EQ(tanh->input(0)->producer(), s.add);
}

TEST(Rewriter, RefusesAReplacementOfAnotherType) {
  Small s;
  Rewriter rewriter(s.graph);
  Value* scalar = rewriter.add_constant(Tensor::scalar<int64_t>(1));
  rewriter.replace(s.relu->output(), scalar);
  EXPECT_THROW(rewriter.commit(), Error);
  verify(s.graph);
  EXPECT_EQ(s.graph.nodes().size(), 2u);
}

TEST(Rewriter, ReportsACycle) {
  Small s;
  Rewriter rewriter(s.graph);
  rewriter.set_input(s.add, 0, s.relu->output());
  EXPECT_THROW(rewriter.commit(), Error);
}

TEST(Graph, CloneIsDeepAndEqual) {
  Small s;
  const std::unique_ptr<Graph> copy = s.graph.clone();
  verify(*copy);
  EXPECT_EQ(to_text(*copy), to_text(s.graph));
  Rewriter rewriter(*copy);
  rewriter.rename(copy->find_value("sum"), "total");
  rewriter.commit();
  EXPECT_NE(s.graph.find_value("sum"), nullptr);
}

TEST(Dim, PolynomialsCompareByMeaning) {
  const Dim a = Dim::symbol("a");
  const Dim b = Dim::symbol("b");
  EXPECT_EQ(Dim::parse("a + b"), b + a);
  EXPECT_EQ(Dim::parse("2*a*b + 3"), a * b + b * a + 3);
  EXPECT_EQ((a * b * 6).divided_by(b * 2), a * 3);
  EXPECT_FALSE((a + 1).divided_by(Dim(2)).has_value());
  EXPECT_EQ(a - a, Dim(0));
  EXPECT_EQ((a * b + a).substitute({{"a", Dim(2)}}), b * 2 + 2);
  EXPECT_EQ(Dim::parse("weird name!").as_symbol(), "weird name!");
}

TEST(ShapeInference, ShapeArithmeticStaysSymbolic) {
  Graph graph;
  Rewriter rewriter(graph);
  Value* x = rewriter.add_input("x", f32({Dim::symbol("n"), 4}));
  Node* shape = rewriter.add_node({.op = "Shape", .inputs = {x}});
  Value* two = rewriter.add_constant(Tensor::from<int64_t>({2}, {2, 3}));
  Node* product = rewriter.add_node({.op = "Mul", .inputs = {shape->output(), two}});
  rewriter.add_output(product->output(), "p");
  rewriter.commit();
  const auto& elements = product->output()->elements();
  ASSERT_TRUE(elements.has_value());
  EXPECT_EQ((*elements)[0], Dim::symbol("n") * 2);
  EXPECT_EQ((*elements)[1], Dim(12));
}

}  // namespace
}  // namespace quern
