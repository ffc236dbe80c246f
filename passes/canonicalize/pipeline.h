// The steps from an imported graph to the canonical one.
#pragma once

#include <vector>

#include "passes/recipe.h"

namespace quern::passes {

// Clean-up to a fixed point, the fusions of plain graphs, then the decoder over rows. A graph that is no
// decoder keeps its inputs and outputs and ends with fused operators (encoders); ToDecoder's note says why.
std::vector<RecipeStep> canonicalization_steps();

}  // namespace quern::passes
