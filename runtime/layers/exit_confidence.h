// What early exits of decoders and encoders share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "runtime/layers/early_exit.h"

namespace quern::runtime {

// How sure logits are, from 0 to 1: by Margin, MaxProbability or Entropy; Always: 1. Throws Error{Internal}
// for what logits alone don't tell.
double confidence_of(ExitConfidence confidence, std::span<const float> logits);

// The exits of a model of so many layers that a rule uses. Throws Error{InvalidArgument} where there are
// none, or none behind a layer that the rule names.
std::vector<int64_t> exits_in_use(const Graph& graph, const ExitRule& rule, int64_t layers);

}  // namespace quern::runtime
