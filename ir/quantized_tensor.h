// A weight in few bits: integer codes together with what turns them back into numbers.
#pragma once

#include <optional>
#include <string>

#include "ir/tensor.h"

namespace quern {

// How the numbers of a tensor became codes:  real = (code - zero_point) * scale.
struct QuantScheme {
  DType code = DType::I8;  // I8, U8, I4, U4, I2, U2, or a float format of 8 bits or fewer
  bool symmetric =
      true;  // no zero points stored: 0 for signed codes and floats, 2^(bits-1) for unsigned ones
  // The axis along which scales differ for "channel", and along which groups of consecutive elements share a
  // scale for "group" it is the other (reduction) axis. See granularity.
  enum class Granularity { Tensor, Channel, Group } granularity = Granularity::Channel;
  int axis = 0;            // Channel: the axis with one scale per index. Group: the axis cut into groups.
  int64_t group_size = 0;  // Group only; the last group of an axis may be shorter
  // Of integer codes, where those are fewer than the dtype's: 3 or 2 in I4 or U4, of which then just the
  // values -4..3, 0..7 and so on occur. 0: those of the dtype.
  int bits = 0;

  int code_bits() const { return bits != 0 ? bits : bit_width(code); }

  bool operator==(const QuantScheme&) const = default;
};

// "int8 symmetric per channel", "uint4 asymmetric per group of 32"
std::string to_string(const QuantScheme& scheme);

// Shapes, for a logical tensor of shape [N, K] quantized along rows (what ai.quern.Linear takes):
//   codes        [N, K], dtype scheme.code, packed along K
//   scales       F32 or F16: Tensor [], Channel [N], Group [N, ceil(K/group_size)]
//   zero_points  undefined if symmetric, else the shape of scales and the dtype of the codes
// In general, scales have the logical shape with the grouped axis replaced by the number of groups (Group),
// or just the channel axis (Channel), or no axis (Tensor).
struct QuantizedTensor {
  Tensor codes;
  Tensor scales;
  Tensor zero_points;
  QuantScheme scheme;

  const Shape& shape() const { return codes.shape(); }
  // Of codes, scales and zero points together.
  int64_t byte_size() const { return codes.byte_size() + scales.byte_size() + zero_points.byte_size(); }
  // Throws Error{InvalidModel} where shapes and dtypes do not fit the scheme.
  void check() const;
};

// The logical values, F32. Slow and obvious; the oracle for kernels.
Tensor dequantize(const QuantizedTensor& tensor);

}  // namespace quern
