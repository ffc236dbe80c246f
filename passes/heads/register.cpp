#include "passes/heads/register.h"

#include "passes/heads/insert_medusa_heads.h"

namespace quern::passes {

void register_head_passes(PassRegistry& registry) {
  registry.add<InsertMedusaHeads>();
}

}  // namespace quern::passes
