// Windows that slide over the spatial dimensions of a tensor: convolutions and pooling.
#pragma once

#include <vector>

#include "ir/tensor.h"
#include "runtime/kernel_context.h"

namespace quern::runtime::reference {

struct Windows {
  Shape input;  // spatial dimensions
  Shape kernel;
  Shape strides;
  Shape dilations;
  Shape pads_begin;
  Shape pads_end;
  Shape output;

  int64_t positions() const { return element_count(output); }
  int64_t taps() const { return element_count(kernel); }
  // Where tap `tap` of the window at `position` lies in the input, as a flat offset; -1: in the padding.
  int64_t source(int64_t position, int64_t tap) const;
  // The flat offsets of all taps of the window at `position` that lie in the input, in the order of the taps.
  // Takes time for these alone: a file of a hundred bytes can ask for a window of any size.
  void collect_sources(int64_t position, std::vector<int64_t>& offsets) const;
  // How many taps lie in the input or its padding: windows of a ceiling may reach beyond the padding.
  int64_t taps_in_padded(int64_t position) const;
};

// From the attributes strides, dilations, pads, auto_pad and, if `ceil`, ceil_mode of the node. Fails, naming
// it, where they do not fit.
Windows windows_of(const KernelContext& context, const Shape& spatial, const Shape& kernel,
                   bool ceil = false);

// The windows of the convolution that a ConvTranspose of inputs of these spatial dimensions is the transpose
// of: its input is this one's output. From the attributes strides, dilations, pads, auto_pad, output_padding
// and output_shape.
Windows transposed_windows(const KernelContext& context, const Shape& spatial, const Shape& kernel);

// An attribute with one entry per spatial dimension. Fails outside [least, 2^30].
Shape spatial_attribute(const KernelContext& context, const std::string& name, size_t count, int64_t fallback,
                        int64_t least);

// The spatial dimensions of [N, C, ...]. Fails where there are none.
Shape spatial_dims(const KernelContext& context, const Tensor& x);

}  // namespace quern::runtime::reference
