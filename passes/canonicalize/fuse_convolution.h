// Convolutions with constant weights become ai.quern.Convolution and ConvolutionTranspose.
#pragma once

#include "passes/pass.h"

namespace quern::passes {

// Before: Conv(x, W, b?) and ConvTranspose(x, W, b?) of one to three spatial dimensions, W a constant of
// floats
//         or an expression of one
// After:  ai.quern.Convolution(x, M, b) and ConvolutionTranspose(x, M, b), with M [outputs, taps * C / group]
//         what Transpose and Reshape make of W: a row for each output, as Linear's weights have, so that all
//         that is known of weights (formats, methods, calibration) serves convolutions too
// If:     b is a constant vector of one number for each output. Quantized constants stay: files that are
//         quantized already run as they are written.
class FuseConvolution : public Pass {
 public:
  FuseConvolution();
  PassReport run(Graph& graph, PassContext& context) override;
};

}  // namespace quern::passes
