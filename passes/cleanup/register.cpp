#include "passes/cleanup/register.h"

#include "passes/cleanup/common_subexpressions.h"
#include "passes/cleanup/constant_folding.h"
#include "passes/cleanup/dead_code.h"
#include "passes/cleanup/no_ops.h"
#include "passes/cleanup/shape_arithmetic.h"

namespace quern::passes {

void register_cleanup_passes(PassRegistry& registry) {
  registry.add<ConstantFolding>();
  registry.add<DeadCode>();
  registry.add<CommonSubexpressions>();
  registry.add<NoOps>();
  registry.add<ShapeArithmetic>();
}

}  // namespace quern::passes
