// Between exit heads in training and their file.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "calibrate/train/heads.h"
#include "ir/graph.h"

namespace quern::passes {

struct ExitTraining {
  std::vector<int64_t> layers;  // after which the heads stand
  int64_t rank = 0;             // of their adapters; 0: norms alone
  // Learn the final layer's distributions (Kullback-Leibler divergence) instead of the text's tokens.
  bool from_final_layer = false;
  uint64_t seed = 0;
};

struct ExitHeads {
  std::vector<calibrate::train::Head> heads;
  // Names of the values that Head::source numbers: the streams behind those layers, and the final hidden
  // state, which the head's projection reads.
  std::vector<std::string> sources;
};

// On the streams of a canonical decoder; the model's own vocabulary projection stays as it is. Throws
// Error{InvalidArgument} for layers that the model lacks, Error{Unsupported} where the head reads no norm.
ExitHeads exit_heads_to_train(const Graph& graph, const ExitTraining& options);

// As insert-exit-heads reads them.
void write_exit_heads(const std::string& path, std::span<calibrate::train::Head> heads);

}  // namespace quern::passes
