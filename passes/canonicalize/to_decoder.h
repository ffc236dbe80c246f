// The pass that ends in the canonical decoder.
#pragma once

#include "passes/pass.h"

namespace quern::passes {

// Before: a decoder over [batch, sequence], with past keys and values as inputs or without any cache, whose
//         projections, norms, activations and attentions are operators (the fuse-... passes).
// After:  the same decoder over rows with the runtime's cache, as docs/canonical-graph.md describes it;
// metadata
//         quern.decoder = 1, and context_length where constant tables end.
// If:     every operator between the ids and the logits is shown to work on one token at a time, by symbolic
//         shapes; attention masks, evaluated, are causal (maybe windowed, maybe ALiBi); what positions do to
//         queries and keys, evaluated, is a rotary embedding. Else nothing changes, and the report says what
//         was in the way. Padding, which a cache by sequence does not need, is dropped.
class ToDecoder : public Pass {
 public:
  ToDecoder();
  PassReport run(Graph& graph, PassContext& context) override;
};

// Whether the graph is a canonical decoder.
bool is_decoder(const Graph& graph);

}  // namespace quern::passes
