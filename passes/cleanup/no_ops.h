// Removes nodes that hand on what they get.
#pragma once

#include "passes/pass.h"

namespace quern::passes {

// Before                                             After: the input itself, if
// Identity(x); Dropout(x) of inference               always
// Cast(x), CastLike(x, y)                            the element type stays
// Reshape, Flatten, Squeeze, Unsqueeze, Expand, Tile the symbolic shape stays
// Transpose(x, perm)                                 perm is the identity
// Slice(x)                                           its steps are 1 and the symbolic shape stays: it takes
// all Pad(x, pads)                                       all pads are 0 Concat(x, e...), e empty along the
// axis            only one non-empty input is left; else without the empty ones Split(x) it has one output
// Sum, Mean, Max, Min of one input                   always
// Add(x, 0), Sub(x, 0), Mul(x, 1), Div(x, 1),        the constant does not widen the shape
// Pow(x, 1), And(x, true), Or(x, false)
// Where(true or false, x, y)                         the condition is constant and the chosen one has the
// shape of
//                                                    the result
//
// x + 0 is x except for x = -0.0, which then stays -0.0 instead of becoming 0.0.
class NoOps : public Pass {
 public:
  NoOps();
  PassReport run(Graph& graph, PassContext& context) override;
};

}  // namespace quern::passes
