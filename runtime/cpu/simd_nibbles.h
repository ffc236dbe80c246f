// Sixteen codes of 4 bits as lanes; beside simd.h, for the few that need them.
#pragma once

#include "runtime/cpu/simd.h"

namespace quern::cpu::QUERN_ISA {

// Lane i of the first eight: the low half of byte i; of the last eight: the high half of byte i - 8. 0 .. 15.
QUERN_INLINE I32 load_u4(const uint8_t* p) {
#if QUERN_ISA_LEVEL > 0
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  const __m128i mask = _mm_set1_epi8(15);
  const __m128i codes =
      _mm_unpacklo_epi64(_mm_and_si128(bytes, mask), _mm_and_si128(_mm_srli_epi16(bytes, 4), mask));
#if QUERN_ISA_LEVEL >= 3
  return {_mm512_cvtepu8_epi32(codes)};
#else
  return {_mm256_cvtepu8_epi32(codes), _mm256_cvtepu8_epi32(_mm_srli_si128(codes, 8))};
#endif
#else
  uint8_t codes[16];
  for (int i = 0; i < 8; ++i) {
    codes[i] = p[i] & 15;
    codes[i + 8] = p[i] >> 4;
  }
  return load_u8(codes);
#endif
}

}  // namespace quern::cpu::QUERN_ISA
