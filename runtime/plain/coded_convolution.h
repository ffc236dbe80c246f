// Convolutions with packed weights, on the kernels of decoders' projections (runtime/cpu/linear.h): a
// position of the output is a row, made of what its window sees. Products of integers are exact.
#pragma once

#include "ir/activation_scheme.h"
#include "ir/packed_tensor.h"
#include "runtime/kernel_context.h"
#include "runtime/reference/windows.h"

namespace quern::runtime::plain {

struct CodedConvolution {
  const PackedTensor* weight = nullptr;  // [M, taps * C], of whose columns those of a tap lie together
  ActivationScheme scheme;               // None: 16-bit codes by the sample's largest magnitude
  const reference::Windows* windows =
      nullptr;  // if `transposed`: of the convolution that it is the transpose of
  bool transposed = false;
  int64_t batch = 0;
  int64_t channels = 0;  // C
};

// x [batch, C, ...] to y [batch, M, ...], both as ONNX lays them out; `bias` [M] or null. Each sample is
// rounded by itself: its result does not depend on the others. One that holds NaN, or where scales are
// dynamic an infinity, becomes NaN. Runs on OpenMP's threads. Throws Error{OutOfMemory}, std::bad_alloc.
void convolve_codes(const KernelContext& context, const CodedConvolution& convolution, const float* x,
                    const float* bias, float* y);

// Whether convolve_codes() has a form for the weight under the instruction set in use.
bool takes_packed_convolution(const PackedSpec& weight);

}  // namespace quern::runtime::plain
