// Loops over the elements of a shape that step several arrays along, each by strides of its own.
#pragma once

#include <array>
#include <tuple>
#include <vector>

#include "ir/tensor.h"
#include "runtime/kernel_context.h"

namespace quern::runtime::reference {

// body(o0, o1, ...) for each index of `shape` in row-major order, where o_k is the offset that the strides
// strides[k] give the index.
template <size_t N, class Body>
void for_each_offset(const Shape& shape, const std::array<Shape, N>& strides, Body&& body) {
  for (const int64_t dim : shape) {
    if (dim == 0) return;
  }
  std::array<int64_t, N> offsets{};
  Shape index(shape.size(), 0);
  for (;;) {
    std::apply(body, offsets);
    size_t axis = shape.size();
    while (axis > 0) {
      --axis;
      for (size_t k = 0; k < N; ++k) offsets[k] += strides[k][axis];
      if (++index[axis] < shape[axis]) break;
      for (size_t k = 0; k < N; ++k) offsets[k] -= strides[k][axis] * shape[axis];
      index[axis] = 0;
      if (axis == 0) return;
    }
    if (shape.empty()) return;
  }
}

// Strides of a tensor of shape `from` read as if broadcast to `to`: 0 where it repeats.
Shape broadcast_strides(const Shape& from, const Shape& to);

// A tensor of `shape` whose element at an index is x's at offset + sum(index * strides). Any dtype, strings
// and packed sub-byte elements too. The offsets must lie in x.
Tensor strided_copy(const KernelContext& context, const Tensor& x, const Shape& shape, const Shape& strides,
                    int64_t offset = 0);

// A tensor of `shape` whose element i, in row-major order, is element sources[i] of `parts`, tensors of one
// dtype whose elements are counted on from one to the next.
Tensor gather_elements(const KernelContext& context, const std::vector<Tensor>& parts, const Shape& shape,
                       const std::vector<int64_t>& sources);

// Tensors of one dtype joined along an axis in [0, rank). Fails, naming the node, where the other dimensions
// differ.
Tensor concat_tensors(const KernelContext& context, const std::vector<Tensor>& parts, int64_t axis);

// x[..., begin : begin + length, ...] along an axis.
Tensor slice_axis(const KernelContext& context, const Tensor& x, size_t axis, int64_t begin, int64_t length);

}  // namespace quern::runtime::reference
