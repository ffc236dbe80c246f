// How a convolution rounds its input: by one scale for each sample.
#pragma once

#include <span>

#include "ir/activation_scheme.h"
#include "ir/tensor.h"
#include "runtime/kernel_context.h"

namespace quern::runtime::reference {

// code = clamp(round(x / scale), lowest, highest), zero points subtracted.
struct SampleRange {
  float scale = 0;  // 0: all of the sample is 0; NaN: it holds what no code stands for
  float lowest = 0;
  float highest = 0;
};

// What is a token to a Linear is a sample to a convolution: its largest magnitude (Group, Token), or its
// extremes by DynamicQuantizeLinear's formula (TokenAsymmetric), or the fixed scale (Static). Of None the
// range is that of 16-bit codes, -32639 to 32639, by the largest magnitude.
SampleRange sample_range(const ActivationScheme& scheme, std::span<const float> sample);

// x [N, ...] as its codes stand for it. F32.
Tensor rounded_samples(const Tensor& x, const ActivationScheme& scheme);

// Whether a convolution of ai.quern rounds its input: its node says how, and its weight is of integer codes.
bool rounds_input(const KernelContext& context);

}  // namespace quern::runtime::reference
