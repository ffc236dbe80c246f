// How much an error in each column of a weight weighs.
#pragma once

#include <vector>

#include "ir/tensor.h"

namespace quern::passes {

// Of mean 1, in proportion to the squares of the inputs ([K], sums or means); an input that the samples never
// used still weighs something. All 1 where all are 0.
Tensor importance_of(const std::vector<double>& squares);

}  // namespace quern::passes
