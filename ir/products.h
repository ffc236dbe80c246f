// The operators of ai.quern that multiply an activation (input 0) with a weight [outputs, inputs] (input 1)
// and may round the activation first (ir/activation_scheme.h). docs/canonical-graph.md has their semantics.
#pragma once

#include "ir/graph.h"
#include "ir/schema.h"

namespace quern {

// Convolution and ConvolutionTranspose: x [N, C, ...], weight [outputs, taps * C / group], of whose columns
// those of one tap lie together.
inline bool is_convolution(const Node& node) {
  return node.domain() == kQuernDomain && (node.op() == "Convolution" || node.op() == "ConvolutionTranspose");
}

// Those and Linear.
inline bool is_product(const Node& node) {
  return node.is("Linear", kQuernDomain) || is_convolution(node);
}

}  // namespace quern
