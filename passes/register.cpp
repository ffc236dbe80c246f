#include "passes/cleanup/register.h"
#include "passes/registry.h"

namespace quern::passes {

void register_all_passes(PassRegistry& registry) {
  register_cleanup_passes(registry);
}

}  // namespace quern::passes
