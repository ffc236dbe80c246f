// Computes what depends on constants alone.
#pragma once

#include "passes/pass.h"

namespace quern::passes {

// Before: a node all of whose inputs are constants; or a small integer tensor whose elements shape inference
//         knows to be constant, whatever computes it (Shape of a static dimension, and arithmetic on it).
// After:  its outputs are constants.
// If:     the node is pure and has no sub-graphs; every output has at most `max-bytes`; its inputs have at
// most 64
//         times that; and the folded constants of the graph together stay under `max-total-bytes`, so that
//         folding never needs much memory. What is larger stays an expression (passes/pass.h).
// Names:  a constant made of one weight alone takes over the weight's name, if nothing else uses the weight:
// reports
//         and overrides speak of the user's own tensors.
class ConstantFolding : public Pass {
 public:
  ConstantFolding();
  PassReport run(Graph& graph, PassContext& context) override;

 private:
  int64_t max_bytes_ = int64_t{1} << 20;
  int64_t max_total_bytes_ = int64_t{64} << 20;
};

}  // namespace quern::passes
