// Lays weights out for the kernels.
#pragma once

#include "passes/pass.h"

namespace quern::passes {

// Before: Linear(x, w, b), Embedding(w, ids) with w a constant matrix, of floats or quantized, or such an
// expression After:  the same with PackWeight(w) If:     ir/packed_tensor.h has a layout for it: f32, f16,
// bf16; codes of 4 or 8 bits, per tensor, per channel of
//         axis 0, or in groups of a multiple of 16 along axis 1
class PackWeights : public Pass {
 public:
  PackWeights();
  PassReport run(Graph& graph, PassContext& context) override;

 private:
  bool floats_ = true;
};

}  // namespace quern::passes
