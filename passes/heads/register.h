#pragma once

#include "passes/registry.h"

namespace quern::passes {

void register_head_passes(PassRegistry& registry);

}  // namespace quern::passes
