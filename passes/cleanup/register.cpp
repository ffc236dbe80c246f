#include "passes/cleanup/register.h"

#include "passes/cleanup/dead_code.h"

namespace quern::passes {

void register_cleanup_passes(PassRegistry& registry) {
  registry.add<DeadCode>();
}

}  // namespace quern::passes
