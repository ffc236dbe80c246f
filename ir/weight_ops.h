// QuantizeWeight and PackWeight of ai.quern: what becomes of a weight, written down as nodes.
//
//   Linear(x, PackWeight(QuantizeWeight(Transpose(W))), b)
//
// A conversion decides first what each weight becomes and computes it, one weight at a time, when the
// artifact is written: the nodes are the decision. They are never part of an artifact. See
// docs/canonical-graph.md.
#pragma once

#include "ir/graph.h"
#include "ir/quantize.h"

namespace quern {

// The attributes of a QuantizeWeight with these options: code, symmetric, granularity, group_size, scales,
// range; bits, method and clip where they are not the usual ones. Importance is the node's second input.
Attributes to_attributes(const QuantizeOptions& options);

// The options of a QuantizeWeight, without importance. Throws Error{InvalidModel} naming the node where an
// attribute makes no sense.
QuantizeOptions quantize_options(const Node& node);

}  // namespace quern
