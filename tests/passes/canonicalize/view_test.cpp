#include "passes/canonicalize/view.h"

#include <gtest/gtest.h>

#include "ir/rewriter.h"

namespace quern::passes {
namespace {

const Dim kB = Dim::symbol("batch");
const Dim kS = Dim::symbol("sequence");

View rows() {
  return View(SymShape{kB, kS, 192});
}

TEST(ViewTest, PartsHeadsAndJoinsThemAgain) {
  const auto parted = rows().reshape({kB, kS, 6, 32});
  ASSERT_TRUE(parted);
  EXPECT_EQ(to_string(*parted), "[axis 0:batch, axis 1:sequence, axis 2/32:6, axis 2:32]");
  const View heads = parted->transpose(std::vector<int64_t>{0, 2, 1, 3});
  EXPECT_EQ(heads.shape(), (SymShape{kB, 6, kS, 32}));
  const auto back = heads.transpose(std::vector<int64_t>{0, 2, 1, 3}).reshape({kB, kS, 192});
  ASSERT_TRUE(back);
  EXPECT_EQ(*back, rows());
}

TEST(ViewTest, JoiningWithoutTransposingBackIsAnotherView) {
  const View heads = rows().reshape({kB, kS, 6, 32})->transpose(std::vector<int64_t>{0, 2, 1, 3});
  const auto joined = heads.reshape({kB, kS, 192});
  EXPECT_FALSE(joined && *joined == rows());
}

TEST(ViewTest, JoinsBatchAndSequence) {
  const auto flat = rows().reshape({kB * kS, 192});
  ASSERT_TRUE(flat);
  EXPECT_EQ(*flat->reshape({kB, kS, 192}), rows());
}

TEST(ViewTest, OneUnknownDimensionIsWhatIsLeft) {
  const auto view = rows().reshape({kB, kS, Dim::fresh(), 32});
  ASSERT_TRUE(view);
  EXPECT_EQ(view->shape(), (SymShape{kB, kS, 6, 32}));
}

TEST(ViewTest, RepeatsHeads) {
  const View keys = View(SymShape{kB, 2, kS, 32});
  const auto repeated = keys.unsqueeze({2}).expand({kB, 2, 3, kS, 32})->reshape({kB, 6, kS, 32});
  ASSERT_TRUE(repeated);
  EXPECT_EQ(
      to_string(repeated->axis(1) == ViewAxis{{1, 1, 2}, {ViewAtom::kBroadcast, 1, 3}} ? *repeated : View()),
      "[axis 0:batch, axis 1:2*broadcast:3, axis 2:sequence, axis 3:32]");
}

TEST(ViewTest, SlicesKeepOffsets) {
  const auto middle = rows().slice(2, 64, 64);
  ASSERT_TRUE(middle);
  EXPECT_EQ(middle->offsets(), (std::vector<int64_t>{0, 0, 64}));
  EXPECT_EQ(middle->shape(), (SymShape{kB, kS, 64}));
}

TEST(ViewTest, SlicesOneOfInterleavedParts) {
  // [heads, 3, size]: the keys of each head.
  const auto parts = rows().reshape({kB, kS, 4, 3, 16});
  const auto keys = parts->slice(3, 1, 1)->squeeze({3});
  ASSERT_TRUE(keys);
  EXPECT_EQ(keys->offsets()[2], 16);
  EXPECT_EQ(keys->axis(2), (ViewAxis{{2, 48, 4}}));
}

TEST(ViewTest, SlicesAcrossMergedLoopsOnlyWhereTheyAreWhole) {
  const View heads = rows().reshape({kB, kS, 6, 32})->transpose(std::vector<int64_t>{0, 1, 3, 2});
  const auto joined = heads.reshape({kB, kS, 192});  // size-major
  ASSERT_TRUE(joined);
  EXPECT_TRUE(joined->slice(2, 6, 12));
  EXPECT_FALSE(joined->slice(2, 3, 12));
}

TEST(ViewTest, RefusesToCutSymbols) {
  EXPECT_FALSE(rows().reshape({kS, kB, 192}));
  EXPECT_FALSE(rows().slice(1, 0, 1));
  EXPECT_FALSE(rows().reshape({kB, kS, 5, 32}));
}

TEST(ViewTest, FollowsNodes) {
  Graph graph;
  Rewriter rewriter(graph);
  Value* x = rewriter.add_input("x", {DType::F32, SymShape{kB, kS, 192}});
  Value* shape = rewriter.add_constant(Tensor::from<int64_t>({4}, {0, 0, 6, 32}));
  const ValueType parted{DType::F32, SymShape{kB, kS, 6, 32}};
  Node* reshape = rewriter.add_node({.op = "Reshape", .inputs = {x, shape}, .outputs = {{.type = parted}}});
  Node* relu = rewriter.add_node({.op = "Relu", .inputs = {x}});
  rewriter.add_output(reshape->output(), "y");
  rewriter.add_output(relu->output(), "z");
  rewriter.commit();
  const auto view = rows().apply(*reshape);
  ASSERT_TRUE(view);
  EXPECT_EQ(view->shape(), *parted.shape);
  EXPECT_FALSE(rows().apply(*relu));
}

}  // namespace
}  // namespace quern::passes
