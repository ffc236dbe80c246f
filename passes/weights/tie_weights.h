// Finds weights that are stored twice.
#pragma once

#include "passes/pass.h"

namespace quern::passes {

// Before: two weights of Linear or Embedding, different constants or expressions of them, that are equal as
// matrices
//         [N, K]: the head's weight that an exporter stored a second time, perhaps transposed
// After:  both uses use one: an embedding's if there is one, else the first
// If:     every element is equal. Weights are read only where a sample of them agrees.
class TieWeights : public Pass {
 public:
  TieWeights();
  PassReport run(Graph& graph, PassContext& context) override;
};

}  // namespace quern::passes
