// Mixtures of experts become RouteExperts, ExpertRows and CombineExperts of ai.quern around each expert's
// layers.
#pragma once

#include "passes/canonicalize/match.h"
#include "passes/pass.h"

namespace quern::passes {

// Before: a router's product, TopK, and whatever an exporter makes of it: a loop over experts that gathers
// rows
//         by NonZero and adds them up by ScatterElements, products of all rows with all experts and a matrix
//         of weights, ...; or com.microsoft MoE and QMoE.
// After:  routing = RouteExperts(logits); for each expert its layers on ExpertRows(x, routing), each product
// a
//         Linear of its own; CombineExperts(routing, results). Only the experts that a token is routed to are
//         computed.
// If:     evaluating shows that the graph computes just that (experts_match.h): weights are a softmax or
// logistic
//         function of the logits, normalized over the chosen experts or not, times a number. An expert has
//         one or two layers of products, and operators row by row between them.
class FuseExperts : public Pass {
 public:
  FuseExperts();
  PassReport run(Graph& graph, PassContext& context) override;
};

// Matrix `e` of a constant [E, N, K] as [N, K], vector `e` of a constant [E, N] as [N]; shares its bytes
// where it can.
Value* expert_slice(BatchRewriter& batch, Value* constant, int64_t e);
// MoE or QMoE as those operators. Empty, or why it stays; throws Error where its weights make no sense.
std::string expand_moe(BatchRewriter& batch, const Node& node);

}  // namespace quern::passes
