// Removes what nobody uses.
#pragma once

#include "passes/pass.h"

namespace quern::passes {

// Before: nodes none of whose outputs reach an output of the graph; constants without uses.
// After: neither. Graph inputs stay, used or not: callers bind them by name.
class DeadCode : public Pass {
 public:
  DeadCode();
  PassReport run(Graph& graph, PassContext& context) override;
};

}  // namespace quern::passes
