// Between Medusa heads in training and their file.
#pragma once

#include <span>
#include <vector>

#include "calibrate/train/heads.h"
#include "ir/graph.h"
#include "passes/heads/medusa_weights.h"

namespace quern::passes {

struct MedusaTraining {
  int64_t heads = 3;
  int64_t blocks = 1;
  // Each head learns a vocabulary projection of its own, that begins as the model's; else all share the
  // model's, which stays as it is.
  bool own_projections = false;
  double decay = 0.8;  // head k, from 0, counts decay^(k + 1) in the loss
};

// Heads to be trained on the last hidden states of a canonical decoder, of which `from`, if not empty, are
// the beginning. Throws Error{InvalidArgument} for a graph that is none, or `from` of another size.
std::vector<calibrate::train::Head> medusa_heads_to_train(const Graph& graph, const MedusaTraining& options,
                                                          const std::vector<MedusaHead>& from = {});

// As they are now; heads with the model's projection have none of their own.
std::vector<MedusaHead> trained_medusa_heads(std::span<calibrate::train::Head> heads);

}  // namespace quern::passes
