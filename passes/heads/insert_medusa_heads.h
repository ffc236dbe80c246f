// Adds heads that guess the tokens behind the next one.
#pragma once

#include "passes/pass.h"

namespace quern::passes {

// Before: logits = Linear(h, U0) in a canonical decoder (docs/canonical-graph.md)
// After:  beside it, for each head k, medusa_logits_k = Linear(x, U) with x = h, then for each of its blocks
//         x = Add(x, Swish(Linear(x, W, b)))
// If:     the heads fit the model's width and vocabulary: Error{InvalidArgument} says where they do not. A
//         graph that is no decoder, or has such outputs, stays as it is.
// Heads without a projection of their own share U0: nothing is copied. "fresh" heads are such ones with
// blocks of zeros: each says what the model's own head says.
class InsertMedusaHeads : public Pass {
 public:
  InsertMedusaHeads();
  PassReport run(Graph& graph, PassContext& context) override;

 private:
  int64_t heads_ = 0;
  std::string weights_;
};

}  // namespace quern::passes
