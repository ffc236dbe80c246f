// Computes once what is computed twice.
#pragma once

#include "passes/pass.h"

namespace quern::passes {

// Before: two pure nodes of the same operator, version, attributes and inputs; or two constants of the same
// type
//         and content, whatever their names.
// After:  the later one's uses are the earlier one's. Nodes of a sub-graph may become uses of the graphs
// around it. If:     the earlier one has every output that the later one has; the nodes have no sub-graphs,
// and no attribute
//         tensors of more than 4 KiB.
// Comparing constants reads them: a weight is read only if a sample of another of its type agrees with its
// own.
class CommonSubexpressions : public Pass {
 public:
  CommonSubexpressions();
  PassReport run(Graph& graph, PassContext& context) override;
};

}  // namespace quern::passes
