// Weights that the file holds quantized become quantized tensors.
#pragma once

#include "passes/pass.h"

namespace quern::passes {

// Before: com.microsoft MatMulNBits, MatMulBnb4, GatherBlockQuantized, DynamicQuantizeMatMul,
// MatMulIntegerToFloat;
//         DynamicQuantizeLinear with MatMulInteger, Cast and the products with both scales (the dynamic
//         quantization of ONNX Runtime), or the same with a scale for each token, max |x| / 127;
//         DequantizeLinear of a constant matrix; Gather of quantized rows with DequantizeLinear behind it, or
//         times a Gather of scales.
// After:  ai.quern Linear and Embedding with one quantized constant [N, K] each, or, for DequantizeLinear,
// that
//         constant in its place. NF4, FP4 and blocks with zero points that are no integers become f32: there
//         is no code for them.
// If:     the weight's parts are constants. Activations are no longer quantized on the way: which numbers
//         they are computed in is the backend's choice, not the file's. A scale for each token is kept, as
//         the attribute activations = "int8" of Linear. In a graph that takes keys and values, a
//         QuantizeLinear with a DequantizeLinear behind it goes; elsewhere it stays.
class AdoptQuantized : public Pass {
 public:
  AdoptQuantized();
  PassReport run(Graph& graph, PassContext& context) override;
};

}  // namespace quern::passes
