// Convolutions of f32 and their transposes by oneDNN, in the layouts that it prefers.
#pragma once

#include <dnnl.hpp>

#include "ir/tensor.h"
#include "runtime/kernel_context.h"
#include "runtime/reference/windows.h"

namespace quern::runtime::plain {

struct ConvolutionShape {
  bool transposed = false;
  // w: [outputs, inputs, kernel...], of more than one group [groups, outputs, inputs, kernel...].
  dnnl::memory::dims x, w, y;
  dnnl::memory::dims w_strides;  // of the weights as they lie, in elements
  dnnl::memory::dims strides, dilations, pads_begin, pads_end;
  bool bias = false;

  // Whether oneDNN can say it: no cropping, and windows that fit somewhere.
  bool is_plain() const;
};

// How the elements of a weight lie, in elements.
struct WeightStrides {
  int64_t group = 0, output = 0, input = 0;
  int64_t tap = 0;  // of the innermost spatial dimension; those around it follow
};

struct ConvolutionCounts {
  int64_t groups = 1;
  int64_t outputs = 0, inputs = 0;  // of a group
};

// `windows`: of the convolution, or (transposed) of the one that it is the transpose of. x [N, C, ...].
ConvolutionShape convolution_shape(const Shape& x, const ConvolutionCounts& counts,
                                   const reference::Windows& windows, const WeightStrides& strides,
                                   bool transposed);

// y = x * w + bias; `bias` may be null where shape.bias is not set. Throws dnnl::error; see with_onednn().
void convolve(const ConvolutionShape& shape, const float* x, const float* w, const float* bias, float* y);

}  // namespace quern::runtime::plain
