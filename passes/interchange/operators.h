// Operators of quern and of new versions of ai.onnx in those that other runtimes have.
#pragma once

#include "passes/interchange/interchange.h"

namespace quern::passes {

// The version of ai.onnx that the result of lower_operators() will need.
int lowest_opset(const Graph& graph, const InterchangeOptions& options);

// Before: Linear, Embedding; RMSNormalization, Swish, Gelu, Attention of ai.onnx (as canonicalization leaves
//         them); SkipLayerNormalization and SkipSimplifiedLayerNormalization of com.microsoft
// After:  products and lookups as options.style has them; norms and activations as com.microsoft's operators
//         if options.fused, else as arithmetic; Attention as products and a Softmax
// Sub-graphs included.
void lower_operators(Graph& graph, const InterchangeOptions& options, int opset);

}  // namespace quern::passes
