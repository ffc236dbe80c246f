// What exporters spell out with Shape, Gather, Concat and their kin stays symbolic through inference.
#include <gtest/gtest.h>

#include <limits>

#include "ir/rewriter.h"
#include "ir/shape_inference.h"
#include "tests/support/expect_error.h"

namespace quern {
namespace {

// Builds a graph node by node; inference runs as each is added.
class Builder {
 public:
  Value* input(const std::string& name, SymShape shape, DType dtype = DType::F32) {
    return rewriter_.add_input(name, {dtype, std::move(shape)});
  }
  Value* ints(std::vector<int64_t> values) {
    return rewriter_.add_constant(Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, values));
  }
  Value* scalar(int64_t value) { return rewriter_.add_constant(Tensor::scalar(value)); }
  Value* node(const std::string& op, std::vector<Value*> inputs, Attributes attributes = {}, int opset = 17) {
    return rewriter_
        .add_node(
            {.op = op, .opset = opset, .inputs = std::move(inputs), .attributes = std::move(attributes)})
        ->output();
  }
  // Dimension `axis` of x as a vector of one element.
  Value* dim(Value* x, int64_t axis) {
    return node("Unsqueeze", {node("Gather", {node("Shape", {x}), scalar(axis)}), ints({0})});
  }

 private:
  Graph graph_;
  Rewriter rewriter_{graph_};
};

std::string type_of(const Value* value) {
  return to_string(value->type());
}
std::string elements_of(const Value* value) {
  return value->elements() ? to_string(*value->elements()) : "unknown";
}

const Dim kBatch = Dim::symbol("batch");
const Dim kSequence = Dim::symbol("seq");
const Dim kPast = Dim::symbol("past");

TEST(ShapeArithmetic, HeadsAreSplitAndMergedSymbolically) {
  Builder b;
  Value* x = b.input("x", {kBatch, kSequence, Dim(192)});
  Value* target =
      b.node("Concat", {b.dim(x, 0), b.dim(x, 1), b.ints({6}), b.ints({-1})}, {{"axis", int64_t{0}}});
  EXPECT_EQ(elements_of(target), "[batch, seq, 6, -1]");
  Value* heads = b.node("Reshape", {x, target});
  EXPECT_EQ(type_of(heads), "f32 [batch, seq, 6, 32]");
  Value* swapped = b.node("Transpose", {heads}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
  EXPECT_EQ(type_of(swapped), "f32 [batch, 6, seq, 32]");
  Value* back = b.node("Transpose", {swapped}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
  EXPECT_EQ(type_of(b.node("Reshape", {back, b.ints({0, 0, -1})})), "f32 [batch, seq, 192]");
  EXPECT_EQ(type_of(b.node("Reshape", {x, b.ints({-1, 192})})), "f32 [batch*seq, 192]");
}

TEST(ShapeArithmetic, CachesGrow) {
  Builder b;
  Value* past = b.input("past", {kBatch, Dim(2), kPast, Dim(32)});
  Value* fresh = b.input("new", {kBatch, Dim(2), kSequence, Dim(32)});
  Value* all = b.node("Concat", {past, fresh}, {{"axis", int64_t{2}}});
  EXPECT_EQ(type_of(all), "f32 [batch, 2, past + seq, 32]");
  Value* total = b.node("Add", {b.node("Gather", {b.node("Shape", {past}), b.scalar(2)}),
                                b.node("Gather", {b.node("Shape", {fresh}), b.scalar(2)})});
  EXPECT_EQ(elements_of(total), "[past + seq]");
  Value* start = b.node("Sub", {total, b.node("Gather", {b.node("Shape", {fresh}), b.scalar(2)})});
  EXPECT_EQ(elements_of(start), "[past]");
  EXPECT_EQ(type_of(b.node("Range", {start, total, b.scalar(1)})), "i64 [seq]");
  EXPECT_EQ(type_of(b.node("Range", {b.scalar(0), total, b.scalar(1)})), "i64 [past + seq]");
}

// expand(-1, ...): where(shape == -1, ones, shape) with -1 made of ConstantOfShape and Mul.
TEST(ShapeArithmetic, ExpandIdiomKeepsItsShape) {
  Builder b;
  Value* x = b.input("x", {kBatch, Dim(1), kSequence});
  Value* shape = b.node("Concat", {b.dim(x, 0), b.ints({4}), b.ints({-1})}, {{"axis", int64_t{0}}});
  Value* ones = b.node("ConstantOfShape", {b.ints({3})}, {{"value", Tensor::from<int64_t>({1}, {1})}});
  Value* minus = b.node("Mul", {ones, b.scalar(-1)});
  Value* chosen = b.node("Where", {b.node("Equal", {shape, minus}), ones, shape});
  EXPECT_EQ(elements_of(chosen), "[batch, 4, 1]");
  EXPECT_EQ(type_of(b.node("Expand", {x, chosen})), "f32 [batch, 4, seq]");
}

TEST(ShapeArithmetic, SlicesOfSymbolicAxes) {
  Builder b;
  Value* x = b.input("x", {kBatch, kPast + kSequence, Dim(64)});
  const auto slice = [&](Value* starts, Value* ends, int64_t axis) {
    return b.node("Slice", {x, starts, ends, b.ints({axis}), b.ints({1})});
  };
  constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(type_of(slice(b.ints({0}), b.ints({32}), 2)), "f32 [batch, past + seq, 32]");
  EXPECT_EQ(type_of(slice(b.ints({32}), b.ints({kEnd}), 2)), "f32 [batch, past + seq, 32]");
  EXPECT_EQ(type_of(slice(b.ints({-16}), b.ints({kEnd}), -1)), "f32 [batch, past + seq, 16]");
  Value* past = b.input("past", {kPast});
  EXPECT_EQ(type_of(slice(b.node("Shape", {past}), b.ints({kEnd}), 1)), "f32 [batch, seq, 64]");
  EXPECT_EQ(type_of(slice(b.ints({0}), b.node("Shape", {past}), 1)), "f32 [batch, past, 64]");
  // The last position: one, or none of an empty axis. Nobody knows.
  const std::string last = type_of(slice(b.ints({-1}), b.ints({kEnd}), 1));
  EXPECT_EQ(last.substr(0, 12), "f32 [batch, ");
  EXPECT_EQ(last[12], '?');
}

TEST(ShapeArithmetic, ElementsSurviveCastsSqueezesAndReductions) {
  Builder b;
  Value* x = b.input("x", {kBatch, kSequence, Dim(8)});
  Value* shape = b.node("Shape", {x});
  EXPECT_EQ(elements_of(b.node("ReduceProd", {shape}, {{"keepdims", int64_t{0}}})), "[8*batch*seq]");
  Value* narrow = b.node("Cast", {shape}, {{"to", int64_t{6}}});
  EXPECT_EQ(elements_of(narrow), "[batch, seq, 8]");
  Value* tail = b.node("Slice", {narrow, b.ints({1}), b.ints({1000})});
  EXPECT_EQ(elements_of(tail), "[seq, 8]");
  Value* half = b.node("Div", {b.dim(x, 2), b.ints({2})});
  EXPECT_EQ(elements_of(half), "[4]");
  EXPECT_EQ(elements_of(b.node("Squeeze", {half, b.ints({0})})), "[4]");
  EXPECT_EQ(elements_of(b.node("Size", {x})), "[8*batch*seq]");
  EXPECT_EQ(elements_of(b.node("Div", {b.dim(x, 1), b.ints({2})})), "unknown");
  EXPECT_EQ(elements_of(b.node("Equal", {b.dim(x, 1), b.ints({-1})})), "[0]");
  EXPECT_EQ(elements_of(b.node("Equal", {b.dim(x, 1), b.ints({1})})), "unknown");
}

TEST(ShapeArithmetic, ContradictionsNameTheNode) {
  Builder b;
  Value* x = b.input("x", {kBatch, Dim(7)});
  EXPECT_QUERN_ERROR(b.node("Reshape", {x, b.ints({0, 2, -1})}), ErrorCode::InvalidModel, "Reshape", "7");
  EXPECT_QUERN_ERROR(b.node("MatMul", {x, b.input("w", {Dim(8), Dim(2)})}), ErrorCode::InvalidModel,
                     "MatMul");
  EXPECT_QUERN_ERROR(b.node("Concat", {x, b.input("y", {kBatch, Dim(7), Dim(1)})}, {{"axis", int64_t{0}}}),
                     ErrorCode::InvalidModel, "rank");
  EXPECT_QUERN_ERROR(b.node("Gather", {b.node("Shape", {x}), b.scalar(2)}), ErrorCode::InvalidModel,
                     "index 2");
}

// A small file that squares a sum over and over must not fill the memory with its terms.
TEST(ShapeArithmetic, PolynomialsDoNotGrowWithoutBound) {
  Builder b;
  Value* x = b.input("x", {kBatch + kSequence + kPast + Dim(1)});
  Value* n = b.node("Shape", {x});
  for (int i = 0; i < 40; ++i) n = b.node("Mul", {n, n});
  ASSERT_TRUE(n->elements());
  EXPECT_LT(elements_of(n).size(), 10'000u);
}

}  // namespace
}  // namespace quern
