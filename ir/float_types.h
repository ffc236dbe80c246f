// Conversions between float and the narrow floating-point formats, bit by bit.
// Sources: IEEE 754 binary16; bfloat16 as the upper half of binary32; the ONNX "Float stored in 8 bits" page
// (E4M3FN, E4M3FNUZ, E5M2, E5M2FNUZ), OCP MX for E2M1 and E8M0. All roundings are to nearest, ties to even.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "ir/dtype.h"

namespace quern {

float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);  // overflow becomes infinity

inline float bf16_to_f32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// Narrow formats of 8 bits or fewer: F8E4M3, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F4E2M1, F8E8M0.
// `saturate`: values beyond the largest finite one clamp to it; otherwise they become infinity, or NaN where
// the format has none. F4E2M1 always saturates. F8E8M0 rounds to the nearest power of two of |value|. Throws
// Error{Internal} for another dtype.
float narrow_to_f32(uint8_t bits, DType dtype);
uint8_t f32_to_narrow(float value, DType dtype, bool saturate = true);

}  // namespace quern
