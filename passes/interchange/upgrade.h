// Nodes of a source older than version 13 of ai.onnx, in the form that they have since.
#pragma once

#include "ir/graph.h"
#include "passes/interchange/emitter.h"

namespace quern::passes {

// The version that quern's own nodes need at least: it made axes, splits and ratios inputs.
inline constexpr int kLowestEmittedVersion = 13;

// Replaces `node` where its version and the emitter's write its operator differently: Squeeze, Unsqueeze,
// ReduceSum, Split, Softmax, LogSoftmax, Hardmax and Clip. Says whether it did. Throws Error{Unsupported} for
// operators whose old form has no such replacement here (Pad, Slice, TopK, Dropout, Upsample, Resize, Scan,
// and anything older than version 7). Source: the operator histories of the ONNX specification.
bool upgrade(Emitter& emit, const Node& node);

}  // namespace quern::passes
