// Scales and zero points, which quantizing operators of several families share.
#pragma once

#include <optional>

#include "ir/tensor.h"
#include "runtime/kernel_context.h"

namespace quern::runtime::reference {

// The element of the scales that serves element i of a tensor.
class ScaleLayout {
 public:
  // scale: a scalar, or one per index of `axis` (attribute value, may be negative), or blocked: like the
  // tensor but shorter along the axis. Fails, naming the node, for other shapes. block_size 0: from the
  // shapes.
  ScaleLayout(const KernelContext& context, const Shape& shape, const Shape& scale, int64_t axis,
              int64_t block_size = 0);
  int64_t operator()(int64_t i) const {
    if (single_) return 0;
    const int64_t position = i / inner_ % length_ / block_;
    return blocked_ ? (i / (inner_ * length_) * blocks_ + position) * inner_ + i % inner_ : position;
  }

 private:
  bool single_ = false;
  bool blocked_ = false;
  int64_t inner_ = 1;
  int64_t length_ = 1;
  int64_t block_ = 1;
  int64_t blocks_ = 1;
};

// round_to_even(x / scale) + zero, saturated to the integer dtype; or x / scale as an 8-bit float. The
// quotient is taken in float, as ONNX's arithmetic on f32 is.
struct Quantizer {
  DType dtype = DType::U8;
  bool saturate = true;
  void store(Tensor& out, int64_t i, float value, float scale, int64_t zero) const;
};

// Codes minus zero points, as integers: a (zero point: a scalar, or one per row: axis -2) for MatMulInteger
// and its kin. `zero` may be null.
Tensor minus_zero_point(const KernelContext& context, const Tensor& codes, const Tensor* zero, int64_t axis);

}  // namespace quern::runtime::reference
