// Puts the branch of an If that will be taken in the If's place.
#pragma once

#include "passes/pass.h"

namespace quern::passes {

// Before: If with a constant condition; or, in the main graph, If with a condition that is the graph input by
// which
//         merged decoders are told whether there is a past ("use_cache_branch")
// After:  the nodes and constants of the branch taken, names kept where they are free; in the second case the
//         branch with the past, which serves an empty one too. The graph input stays, unused.
// If:     the branch has no sub-graphs of its own. Not in the second case the decoder of an encoder-decoder:
// with a past,
//         it does not look at the encoder's states any more.
class InlineBranches : public Pass {
 public:
  InlineBranches();
  PassReport run(Graph& graph, PassContext& context) override;
};

}  // namespace quern::passes
