// From rows to batches.
#pragma once

#include <memory>

#include "passes/interchange/interchange.h"

namespace quern::passes {

// Before: a canonical decoder over rows (docs/canonical-graph.md)
// After:  the same over [batch_size, sequence_length, ...], with keys and values as inputs and outputs;
//         Rotary and CachedAttention in operators of ai.onnx and com.microsoft, Linear and Embedding as they
//         were, SelectRows gone: logits of all tokens
// Row-wise operators get another axis in front; those that are not known to bear it work on [tokens, ...]
// between two Reshapes. `opset`: the version that new nodes are written in.
// Throws Error{Unsupported} where an operator holds sub-graphs, or an attention has a form of its own.
std::unique_ptr<Graph> rows_to_batches(const Graph& rows, const InterchangeOptions& options, int opset);

}  // namespace quern::passes
