// Evaluates the arithmetic of shapes symbolically.
#pragma once

#include "passes/pass.h"

namespace quern::passes {

// Before: Reshape(x, shape) with a computed shape, as exporters write view(batch, sequence, 32, 64)
// After:  Reshape(x, constant), with 0 for a dimension that x has at the same place and -1 for one other
// If:     the output's symbolic shape is known and leaves at most one dimension for -1
//
// Before: two computed values of integers with the same symbolic elements, such as the sequence length taken
// from
//         the shape of every layer's hidden state
// After:  one of them: the first in the order of the graph
//
// Constant folding turns elements that are constant into constants; with dead code removed, the Shape,
// Gather, Concat and arithmetic behind them go.
class ShapeArithmetic : public Pass {
 public:
  ShapeArithmetic();
  PassReport run(Graph& graph, PassContext& context) override;
};

}  // namespace quern::passes
