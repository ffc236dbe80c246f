// The fixture itself must notice passes that are wrong.
#include <gtest/gtest-spi.h>

#include "tests/passes/pass_test.h"

namespace quern::test {
namespace {

Graph& small(Graph& graph, float addend) {
  Rewriter rewriter(graph);
  Value* x = rewriter.add_input("x", f32({sym("n"), 2}));
  Value* c = rewriter.add_constant(Tensor::from<float>({2}, {addend, 2.0F}), "c");
  rewriter.add_output(rewriter.add_node({.op = "Add", .inputs = {x, c}})->output(), "y");
  rewriter.commit();
  return graph;
}

TEST(RandomInputs, AreTheSameForTheSameNamesAndFitSymbols) {
  Graph a;
  Graph b;
  small(a, 1);
  small(b, 1);
  RandomInputs random{.sizes = {{"n", 5}}};
  const auto first = random.for_graph(a);
  const auto second = random.for_graph(b);
  EXPECT_EQ(first.at("x").tensor()->shape(), (Shape{5, 2}));
  EXPECT_TRUE(identical(*first.at("x").tensor(), *second.at("x").tensor()));
}

TEST(RandomInputs, ComparisonSeesADifference) {
  Graph a;
  Graph b;
  small(a, 1);
  small(b, 1.001F);
  RandomInputs random;
  const auto inputs = random.for_graph(a);
  const auto wanted = runtime::Interpreter(a).run(inputs);
  const auto given = runtime::Interpreter(b).run(inputs);
  EXPECT_FALSE(testing::Test::HasFailure());
  testing::TestPartResultArray failures;
  {
    const testing::ScopedFakeTestPartResultReporter reporter(&failures);
    expect_close(wanted, given, 1e-5, 1e-5);
  }
  EXPECT_EQ(failures.size(), 1);
  expect_close(wanted, given, 1e-2, 0);
}

}  // namespace
}  // namespace quern::test
