// Products with constant matrices become ai.quern.Linear, look-ups in constant tables ai.quern.Embedding.
#pragma once

#include "passes/pass.h"

namespace quern::passes {

// Before: MatMul(x, W), Gemm(x, W, b?) with alpha = beta = 1 and transA = 0, com.microsoft FusedMatMul(x, W);
//         each with W a constant matrix, or an expression of one; then Add(., b) in either order.
// After:  ai.quern.Linear(x, Transpose(W), b), the Transpose left out where W is one itself or transB is set
// If:     x depends on the data, that is, not on constants, masks, positions and shapes alone (the product of
//         positions and inverse frequencies is no layer); b is a constant vector of length N.
class FuseLinear : public Pass {
 public:
  FuseLinear();
  PassReport run(Graph& graph, PassContext& context) override;
};

// Before: Gather(table [V, C], ids), axis 0, with a constant table of floats, or an expression of one
// After:  ai.quern.Embedding(table, ids)
class FuseEmbedding : public Pass {
 public:
  FuseEmbedding();
  PassReport run(Graph& graph, PassContext& context) override;
};

}  // namespace quern::passes
