// Scales channels of activations so that weights, and activations, round well.
#pragma once

#include "passes/pass.h"

namespace quern::passes {

// Of a QuantizeWeight, until this pass has run: "smooth" or "awq".
inline constexpr const char* kBalanceAttribute = "balance";
// Of a Linear whose input's channels were scaled and whose range is still to be seen (static-activations).
inline constexpr const char* kScaledAttribute = "scaled";

// Before: Linear(norm(x, g), QuantizeWeight(W)), the QuantizeWeight with the attribute balance
// After:  Linear(norm(x, g / s), QuantizeWeight(W * s)): the same products, better rounded; and likewise
// where
//         the input is that of attention (s goes into the rows of the values' weight) or of a gate (into
//         those of `up`). Nothing is left to compute when the model runs.
// If:     nothing else reads the input, and the weights are nobody else's (channel_groups.h); what the
// strength
//         of the scales is, each input's own data decides (channel_scales.h).
// The context must have samples or a table; Error{InvalidArgument} otherwise, Error{Unsupported} for plain
// graphs. Memory: the model in fp32, and up to 64 MB of rows of activations.
class BalanceChannels : public Pass {
 public:
  BalanceChannels();
  PassReport run(Graph& graph, PassContext& context) override;

 private:
  int64_t rows_ = 128;
};

}  // namespace quern::passes
