// Arithmetic on sixteen lanes as it is written on paper, for kernel files.
#pragma once

#include "runtime/cpu/simd.h"

namespace quern::cpu::QUERN_ISA {

QUERN_INLINE F32 operator+(F32 a, F32 b) {
  return add(a, b);
}
QUERN_INLINE F32 operator-(F32 a, F32 b) {
  return sub(a, b);
}
QUERN_INLINE F32 operator*(F32 a, F32 b) {
  return mul(a, b);
}
QUERN_INLINE F32 operator/(F32 a, F32 b) {
  return div(a, b);
}
QUERN_INLINE F32 operator-(F32 a) {
  return neg(a);
}

// Whole or partial: the first `lanes` (1..16) of a row's next sixteen; the others read as 0.
QUERN_INLINE F32 load_lanes(const float* p, int64_t lanes) {
  return lanes >= kLanes ? load(p) : load_partial(p, static_cast<int>(lanes));
}
QUERN_INLINE void store_lanes(float* p, F32 a, int64_t lanes) {
  if (lanes >= kLanes) {
    store(p, a);
  } else {
    store_partial(p, a, static_cast<int>(lanes));
  }
}

// 0, 1, 2, ... 15
QUERN_INLINE F32 lane_numbers() {
  static constexpr float kNumbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load(kNumbers);
}
// `other` in the lanes from n on.
QUERN_INLINE F32 keep_first(F32 a, int64_t n, F32 other) {
  return n >= kLanes ? a : select_less(lane_numbers(), set1(static_cast<float>(n)), a, other);
}
// `other` in the lanes before n.
QUERN_INLINE F32 drop_first(F32 a, int64_t n, F32 other) {
  return n <= 0 ? a : select_less(lane_numbers(), set1(static_cast<float>(n)), other, a);
}

}  // namespace quern::cpu::QUERN_ISA
