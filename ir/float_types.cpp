#include "ir/float_types.h"

#include <limits>

#include "ir/error.h"

namespace quern {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// sign | exponent | mantissa, from the high bit down.
struct Layout {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  bool has_infinity;
  bool fnuz;  // the pattern of negative zero is the only NaN
};

Layout layout_of(DType dtype) {
  switch (dtype) {
    case DType::F8E4M3:
      return {4, 3, 7, false, false};
    case DType::F8E4M3FNUZ:
      return {4, 3, 8, false, true};
    case DType::F8E5M2:
      return {5, 2, 15, true, false};
    case DType::F8E5M2FNUZ:
      return {5, 2, 16, false, true};
    case DType::F4E2M1:
      return {2, 1, 1, false, false};
    default:
      throw_error(ErrorCode::Internal, to_string(dtype), " is not a narrow float format");
  }
}

// The largest finite magnitude's bit pattern, without sign.
uint8_t max_finite_bits(DType dtype) {
  switch (dtype) {
    case DType::F8E4M3:
      return 0x7E;
    case DType::F8E5M2:
      return 0x7B;
    case DType::F4E2M1:
      return 0x7;
    default:
      return 0x7F;
  }
}

uint8_t nan_bits(DType dtype, bool negative) {
  switch (dtype) {
    case DType::F8E4M3:
      return negative ? 0xFF : 0x7F;
    case DType::F8E5M2:
      return negative ? 0xFF : 0x7F;
    default:
      return 0x80;
  }
}

float decode_e8m0(uint8_t bits) {
  return bits == 0xFF ? kNan : std::ldexp(1.0F, static_cast<int>(bits) - 127);
}

uint8_t encode_e8m0(float value) {
  if (std::isnan(value) || std::isinf(value)) return 0xFF;
  const float magnitude = std::fabs(value);
  if (magnitude == 0.0F) return 0;
  int exponent = 0;
  const float fraction = std::frexp(magnitude, &exponent);  // [0.5, 1)
  // The nearest power of two in value: 0.75 lies halfway between 0.5 and 1 and rounds up.
  const int power = fraction >= 0.75F ? exponent : exponent - 1;
  const int biased = power + 127;
  return static_cast<uint8_t>(biased < 0 ? 0 : (biased > 254 ? 254 : biased));
}

}  // namespace

float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1F;
  const uint32_t mantissa = bits & 0x3FF;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000 | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00 | ((magnitude >> 13) & 0x3FF));
  if (magnitude >= 0x477FF000) return static_cast<uint16_t>(sign | 0x7C00);  // rounds to 65536 or more
  if (magnitude < 0x38800000) {
    // Subnormal: the float unit does the rounding at the position of 2^-24.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000));
  }
  const uint32_t rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

float narrow_to_f32(uint8_t bits, DType dtype) {
  if (dtype == DType::F8E8M0) return decode_e8m0(bits);
  const Layout layout = layout_of(dtype);
  const int width = 1 + layout.exponent_bits + layout.mantissa_bits;
  const bool negative = (bits >> (width - 1)) & 1;
  const int exponent = (bits >> layout.mantissa_bits) & ((1 << layout.exponent_bits) - 1);
  const int mantissa = bits & ((1 << layout.mantissa_bits) - 1);
  if (layout.fnuz && bits == 0x80) return kNan;
  const bool top_exponent = exponent == (1 << layout.exponent_bits) - 1;
  if (layout.has_infinity && top_exponent) {
    if (mantissa != 0) return kNan;
    return negative ? -kInfinity : kInfinity;
  }
  if (dtype == DType::F8E4M3 && top_exponent && mantissa == 7) return negative ? -kNan : kNan;
  const float magnitude =
      exponent == 0 ? std::ldexp(static_cast<float>(mantissa), 1 - layout.bias - layout.mantissa_bits)
                    : std::ldexp(static_cast<float>(mantissa + (1 << layout.mantissa_bits)),
                                 exponent - layout.bias - layout.mantissa_bits);
  return negative ? -magnitude : magnitude;
}

uint8_t f32_to_narrow(float value, DType dtype, bool saturate) {
  if (dtype == DType::F8E8M0) return encode_e8m0(value);
  const Layout layout = layout_of(dtype);
  const int width = 1 + layout.exponent_bits + layout.mantissa_bits;
  const bool negative = std::signbit(value);
  const auto sign = static_cast<uint8_t>(negative ? 1 << (width - 1) : 0);
  const uint8_t max_bits = max_finite_bits(dtype);
  if (dtype == DType::F4E2M1) {
    if (std::isnan(value)) return 0x8;  // it has no NaN: -0, as ONNX's cases have it
    saturate = true;
  }
  if (std::isnan(value)) return nan_bits(dtype, negative);
  if (std::isinf(value) && !saturate) {
    return layout.has_infinity ? static_cast<uint8_t>(sign | 0x7C) : nan_bits(dtype, negative);
  }
  const float magnitude = std::fabs(value);
  const float max_value = narrow_to_f32(max_bits, dtype);
  uint8_t code = 0;
  if (magnitude > 0.0F && std::isfinite(magnitude)) {
    int exponent = 0;
    std::frexp(magnitude, &exponent);
    // The weight of the last mantissa bit, not below that of the subnormals.
    const int unit = std::max(exponent - 1, 1 - layout.bias) - layout.mantissa_bits;
    const double steps = std::nearbyint(std::ldexp(static_cast<double>(magnitude), -unit));
    const double rounded = std::ldexp(steps, unit);
    if (rounded > max_value) {
      if (saturate) return static_cast<uint8_t>(sign | max_bits);
      return layout.has_infinity ? static_cast<uint8_t>(sign | 0x7C) : nan_bits(dtype, negative);
    }
    if (rounded > 0.0) {
      std::frexp(rounded, &exponent);
      const int biased = exponent - 1 + layout.bias;
      if (biased <= 0) {
        code = static_cast<uint8_t>(std::ldexp(rounded, layout.bias - 1 + layout.mantissa_bits));
      } else {
        const auto mantissa = static_cast<int>(std::ldexp(rounded, layout.mantissa_bits - (exponent - 1)));
        code = static_cast<uint8_t>((biased << layout.mantissa_bits) |
                                    (mantissa & ((1 << layout.mantissa_bits) - 1)));
      }
    }
  } else if (std::isinf(magnitude)) {
    code = max_bits;
  }
  if (layout.fnuz && code == 0) return 0;
  return static_cast<uint8_t>(sign | code);
}

}  // namespace quern
