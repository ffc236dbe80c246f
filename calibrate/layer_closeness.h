// Two decoders layer by layer: where a candidate's activations part from the original's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "calibrate/samples.h"
#include "ir/graph.h"

namespace quern::calibrate {

// An activation that both models have, over all tokens of the samples.
struct LayerCloseness {
  std::string name;    // of the value
  std::string reader;  // the first product that takes it
  double sqnr_db = 0;  // 10 log10(sum reference^2 / sum error^2); infinite where they are equal
  double cosine = 0;   // of the two as vectors; 1 where both are 0 throughout
};

struct LayerClosenessOptions {
  int threads = 0;
  std::function<void(int64_t done, int64_t total)> progress = {};
};

// The inputs of products of two canonical decoders, matched by name, in the order of the graph. What is
// between two products is counted into the second one's input. Throws Error{InvalidArgument} where they have
// no such value in common.
std::vector<LayerCloseness> compare_layers(const Graph& reference, const Graph& candidate,
                                           const Samples& samples, const LayerClosenessOptions& options = {});

}  // namespace quern::calibrate
