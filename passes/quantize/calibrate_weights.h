// Quantizes weights by what the model computes on calibration samples.
#pragma once

#include "passes/pass.h"

namespace quern::passes {

// Of a QuantizeWeight, until this pass has run: "importance" or "layer-error".
inline constexpr const char* kCalibrateAttribute = "calibrate";

// Before: ai.quern.QuantizeWeight(w) with the attribute calibrate, in a canonical decoder
// After:  importance:  QuantizeWeight(w, m), m the mean square of each input over the samples
//         layer-error: the quantized constant, codes and scales found by minimize_layer_error()
// If:     the context has samples; Error{InvalidArgument} otherwise. Error{Unsupported} for plain graphs.
//
// The products are taken in the order in which the model computes them, in stages: what a stage's inputs are
// is computed by the model with all earlier stages quantized, and (`propagate`) each weight makes up for what
// they have changed. Tables that are also the head come first. Activations are recomputed for each stage,
// never kept; memory is the model in fp32 (twice, with `propagate`), its quantized copy, and `moment-memory`,
// or one layer's moments if those are more: 8 bytes times the square of the product's inputs, twice with
// `propagate`.
class CalibrateWeights : public Pass {
 public:
  CalibrateWeights();
  PassReport run(Graph& graph, PassContext& context) override;

 private:
  double damping_ = 0.01;
  double propagate_ = 0.5;
  int64_t sweeps_ = 3;
  int64_t stages_ = 0;
  int64_t moment_memory_ = 512;
  // What the samples were, for whoever wants to make the artifact again.
  std::string data_;
  int64_t samples_ = 0;
  int64_t context_ = 0;
  int64_t seed_ = 0;
};

}  // namespace quern::passes
