// What a decoder's graph does with the positions of tokens.
#pragma once

#include "ir/graph.h"
#include "runtime/decoder/plan.h"

namespace quern::runtime {

// Fills in the layers' `rotation`, or `fixed_positions` with the reason why keys and values belong to the
// positions that they were computed for: positions are looked up, or serve for something else than turning
// queries and keys, or rotary frequencies depend on the length of the text.
void find_position_use(const Graph& graph, DecoderPlan& plan);

}  // namespace quern::runtime
