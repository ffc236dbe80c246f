// Decides what each weight becomes.
#pragma once

#include "passes/pass.h"
#include "passes/quantize/weight_settings.h"

namespace quern::passes {

// Before: Linear(x, w, b), Embedding(w, ids) with w a constant matrix of floats, or an expression of
// constants After:  fp32, fp16, bf16: Cast(w), nothing where w is of that type; int8, int4:
// ai.quern.QuantizeWeight(w); in every
//         use that takes quantized weights. A tied weight stays one. The numbers are computed later, one
//         weight at a time (passes/weights/materialize.h).
// If:     w is not quantized or packed already.
// Names that overrides are matched against: of the constants that w is made of, of w, and of the nodes that
// use it.
class QuantizeWeights : public Pass {
 public:
  QuantizeWeights();
  PassReport run(Graph& graph, PassContext& context) override;

 private:
  WeightSettings defaults_;
  std::string embeddings_ = "same";
  nlohmann::json overrides_ = nlohmann::json::array();
};

}  // namespace quern::passes
