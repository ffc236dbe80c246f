// Heads that give a decoder's logits after some of its layers.
#pragma once

#include <string>
#include <vector>

#include "passes/pass.h"

namespace quern::passes {

// Before: the residual stream x behind layer k of a decoder
// After:  the same, and an output exit_logits.k of the rows whose logits are asked for:
//         head(norm(x)), with the final norm and head, or a norm of its own, or also an adapter before it,
//         x + up(silu(down(x)))
// If:     the graph is a decoder in canonical form, k is less than its layers, and there is no such output
//         yet. The head's weight is the final one's, so that it is stored and quantized once.
//
// Weights, in a safetensors file: exits.k.norm.weight [C], exits.k.norm.bias [C], exits.k.adapter.down.weight
// [R, C], exits.k.adapter.up.weight [C, R].
class InsertExitHeads : public Pass {
 public:
  InsertExitHeads();
  PassReport run(Graph& graph, PassContext& context) override;

 private:
  std::string layers_;
  std::string head_ = "shared";
  std::string weights_;
};

}  // namespace quern::passes
