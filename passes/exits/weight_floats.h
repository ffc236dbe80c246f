// Weights as they are trained.
#pragma once

#include "ir/graph.h"

namespace quern::passes {

// The numbers of a constant, whatever it is stored as, f32. Throws Error{InvalidArgument} for one that is an
// expression still.
Tensor weight_floats(const Value& weight);

}  // namespace quern::passes
