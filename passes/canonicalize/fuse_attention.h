// Attention that exporters write as products, masks and a Softmax.
#pragma once

#include "passes/pass.h"

namespace quern::passes {

// Before: found from the Softmax over the last axis, outwards.
//         Above it any mixture of: Mul and Div by scalars, Add of a mask or bias, Where(condition, scores,
//         fill) with a constant fill, the soft cap c * Tanh(x / c), Casts between floating types, Reshapes
//         that join or part batch and heads; then MatMul(q, k transposed), q and k maybe scaled by scalars.
//         Below it: Casts, Where(IsNaN(p), 0, p), such Reshapes; then MatMul(p, v).
//         Attention sinks: a constant by head joined to the scores as a last column, which goes behind
//         Softmax. k and v maybe repeated for groups of heads (Unsqueeze, Expand, Reshape).
// After:  ai.onnx Attention(Q, K, V, mask), not causal by itself: the mask says it all. K and V are not
// repeated. With sinks ai.quern Attention, whose input 7 they are.
//         3-D operands [batch, sequence, heads * head size] where q, k and v come in that form and the output
//         goes back to it; else 4-D ones [batch, heads, sequence, head size].
// If:     the operands' re-indexings can be told symbolically (passes/canonicalize/view.h).
class FuseAttention : public Pass {
 public:
  FuseAttention();
  PassReport run(Graph& graph, PassContext& context) override;
};

}  // namespace quern::passes
