// Scales and shifts of channels go into the product before them.
#pragma once

#include "passes/pass.h"

namespace quern::passes {

// Before: BatchNormalization(p, scale, B, mean, var) in its inference form, of p = Convolution,
//         ConvolutionTranspose, or a Linear of rows; also Mul, Add and Sub of such a convolution and a
//         constant with one number for each channel, or one for all
// After:  the product with weight * s (row by row) and bias * s + t: s = scale / sqrt(var + epsilon),
//         t = B - mean * s
// If:     nothing else uses p, all but p are constants of floats, and the weight is not quantized.
class FoldBatchNorm : public Pass {
 public:
  FoldBatchNorm();
  PassReport run(Graph& graph, PassContext& context) override;
};

}  // namespace quern::passes
