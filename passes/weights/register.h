#pragma once

#include "passes/registry.h"

namespace quern::passes {

// Those of passes/weights and passes/quantize.
void register_weight_passes(PassRegistry& registry);

}  // namespace quern::passes
