#include "passes/canonicalize/register.h"
#include "passes/cleanup/register.h"
#include "passes/heads/register.h"
#include "passes/registry.h"
#include "passes/weights/register.h"

namespace quern::passes {

void register_all_passes(PassRegistry& registry) {
  register_cleanup_passes(registry);
  register_canonicalize_passes(registry);
  register_head_passes(registry);
  register_weight_passes(registry);
}

}  // namespace quern::passes
