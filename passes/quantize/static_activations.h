// One scale for all tokens of an activation, from calibration.
#pragma once

#include "passes/pass.h"

namespace quern::passes {

// Before: Linear(x, QuantizeWeight(W)) whose input's range is still to be seen (kStaticActivations: codes and
//         the rule by which outliers are cut off)
// After:  Linear(x, QuantizeWeight(W)), activations = static, with the scale and the codes' limits
// If:     the context has samples or a table of the model as it is here; Error{InvalidArgument} otherwise.
//         Inputs that no sample reached are rounded per token instead, with a note.
//
//   int8             symmetric, scale = limit / 127          codes -127 .. 127
//   uint8            symmetric, scale = limit / 127          codes 1 .. 255, zero point 128
//   ...-asymmetric   scale = (max - min) / 255, both with 0  256 codes, zero point round(-min / scale)
//
// Limits: the extremes; percentile, of the magnitude, or with asymmetric codes of either tail; mse and kl, of
// the magnitude, for 8-bit codes.
class StaticActivations : public Pass {
 public:
  StaticActivations();
  PassReport run(Graph& graph, PassContext& context) override;
};

}  // namespace quern::passes
