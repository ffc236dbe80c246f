// Codes that keep a layer's outputs, not its weights.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "calibrate/second_moments.h"
#include "ir/quantize.h"

namespace quern::passes {

struct LayerErrorOptions {
  // Added to the diagonal of H, as a share of its mean; ten times as much wherever H is not positive
  // definite.
  double damping = 0.01;
  // Rounds of coordinate descent after GPTQ: each code, then each scale, is set to the best one given all
  // others.
  int sweeps = 3;
  // Not GPTQ: the ranges alone are searched, shares of the full one from 1 down to 0.4, and codes are the
  // nearest of them. In rounds too: each group's share is the best one given those of the others.
  bool clips_alone = false;
};

struct LayerErrorResult {
  QuantizedTensor weight;
  QuantizeError error;        // of the weights themselves
  double before = 0;          // tr(E H E^T) / tr(W H W^T) with E the error of rounding to nearest ...
  double after = 0;           // ... and of the result
  double damping = 0;         // that was used
  int64_t silent_inputs = 0;  // that were 0 in all samples: their weights are rounded to nearest
};

// GPTQ (Frantar et al. 2023): W [N, cols], quantized column by column, each column's error made up for by the
// columns that are still to come, in the order of descending diagonal of H; scales of the groups are chosen
// first, by `options` with the diagonal as importance. Then coordinate descent on ||(W - Q) X||^2, which
// takes what GPTQ's greedy order left.
//
// `moments`: H = sum of x x^T over calibration data, [cols, cols]. `target`, if not empty, is [N, cols]: what
// the codes shall stand for in place of W (see propagated_target()). Integer codes only. Uses all processors;
// the result does not depend on how many. Throws Error{BadData} as quantize_rows() does, and where no damping
// makes H positive definite.
LayerErrorResult minimize_layer_error(std::span<const float> weight, int64_t cols,
                                      const calibrate::SquareMatrix& moments, const QuantizeOptions& options,
                                      const LayerErrorOptions& how = {}, std::span<const float> target = {});

// The weights W* that give, on the inputs y that a partly quantized model has, what W gives on the inputs x
// of the original: the least-squares solution W (sum x y^T) (sum y y^T)^-1, damped, moved from W by the share
// `strength`. (The propagation of quantization errors of Arai & Ichikawa 2025.) `cross`: sum of x y^T, x
// along rows.
std::vector<float> propagated_target(std::span<const float> weight, int64_t cols,
                                     const calibrate::SquareMatrix& cross,
                                     const calibrate::SquareMatrix& moments, double damping, double strength);

}  // namespace quern::passes
