// A residual sum and the norm that follows it in one operator.
#pragma once

#include "passes/pass.h"

namespace quern::passes {

// Before: s = Add(x, y); n = RMSNormalization(s, weight), or LayerNormalization(s, weight, bias)
// After:  n, _, _, s = com.microsoft SkipSimplifiedLayerNormalization(x, y, weight), or
//         SkipLayerNormalization(x, y, weight, bias); x is what is computed first, the residual stream
// If:     x and y have the same shape, of rank 2 or 3, and are no constants; weight and bias are vectors.
// Where
//         several norms follow a sum, the first takes it.
class FuseSkipNorm : public Pass {
 public:
  FuseSkipNorm();
  PassReport run(Graph& graph, PassContext& context) override;
};

}  // namespace quern::passes
