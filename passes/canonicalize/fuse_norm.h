// Layer and RMS normalizations that exporters write as arithmetic.
#pragma once

#include "passes/pass.h"

namespace quern::passes {

// Before: found from the ReduceMean of a square over the last axis. With d = x - ReduceMean(x), or d = x:
//           d / Sqrt(ReduceMean(d^2) + epsilon) [* weight] [+ bias]
//         Squares are Pow(d, 2) or Mul(d, d); the root is a Sqrt that divides, a Reciprocal or 1 / Sqrt, or
//         Pow(-0.5), that multiplies; Casts between floating types may stand around any step; operands come
//         in either order. Also SimplifiedLayerNormalization, ONNX Runtime's name for the RMS one.
// After:  LayerNormalization(x, weight, bias) or RMSNormalization(x, weight), axis -1, statistics in f32
// If:     weight and bias are constant and as long as the last axis (or one scalar for all of it; missing:
// ones).
class FuseNorm : public Pass {
 public:
  FuseNorm();
  PassReport run(Graph& graph, PassContext& context) override;
};

}  // namespace quern::passes
