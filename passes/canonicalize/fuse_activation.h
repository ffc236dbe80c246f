// Activation functions that exporters write as arithmetic, found by what they compute.
#pragma once

#include "passes/pass.h"

namespace quern::passes {

// Before: any tree of elementwise operators with scalar constants that maps one value x to one value y and
//         contains an Erf, Tanh or Sigmoid; also com.microsoft's Gelu, FastGelu, BiasGelu and QuickGelu.
// After:  Gelu(x), Gelu(x, approximate = tanh) or Swish(x, alpha)
// If:     y(x), evaluated on a grid over [-10, 10], is that function to within rounding. The spelling of the
//         tree does not matter.
class FuseActivation : public Pass {
 public:
  FuseActivation();
  PassReport run(Graph& graph, PassContext& context) override;
};

}  // namespace quern::passes
