// Sixteen 32-bit lanes, whatever the machine has: one zmm register, two ymm registers, or an array that the
// compiler makes of it what it can. For *_kernels.cpp files (isa.h), where QUERN_ISA names the namespace and
// QUERN_ISA_LEVEL the instructions that may be used.
//
// F32 holds 16 floats. I32 holds 64 bytes: 16 int32, 32 int16 or 64 int8 as the operation says. All loads and
// stores may be unaligned. Floating-point operations round to nearest even; fmadd is fused except at level 0.
// Reductions are trees of a fixed shape, the same on every level: lane i with i+8, then i+4, i+2, i+1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifndef QUERN_ISA
#define QUERN_ISA portable
#define QUERN_ISA_LEVEL 0
#endif

#if QUERN_ISA_LEVEL > 0
#include <immintrin.h>
#endif

#define QUERN_INLINE inline __attribute__((always_inline))
#define QUERN_NOINLINE __attribute__((noinline))
#if defined(__clang__)
#define QUERN_UNROLL _Pragma("unroll")
#else
#define QUERN_UNROLL _Pragma("GCC unroll 16")
#endif

namespace quern::cpu::QUERN_ISA {

inline constexpr int kLanes = 16;

#if QUERN_ISA_LEVEL >= 3  // AVX-512

struct F32 {
  __m512 v;
};
struct I32 {
  __m512i v;
};

QUERN_INLINE __mmask16 lane_mask(int n) {
  return static_cast<__mmask16>((1U << n) - 1);
}

QUERN_INLINE F32 zero_f() {
  return {_mm512_setzero_ps()};
}
QUERN_INLINE F32 set1(float x) {
  return {_mm512_set1_ps(x)};
}
QUERN_INLINE F32 load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
QUERN_INLINE void store(float* p, F32 a) {
  _mm512_storeu_ps(p, a.v);
}
QUERN_INLINE F32 load_partial(const float* p, int n) {
  return {_mm512_maskz_loadu_ps(lane_mask(n), p)};
}
QUERN_INLINE void store_partial(float* p, F32 a, int n) {
  _mm512_mask_storeu_ps(p, lane_mask(n), a.v);
}
QUERN_INLINE F32 add(F32 a, F32 b) {
  return {_mm512_add_ps(a.v, b.v)};
}
QUERN_INLINE F32 sub(F32 a, F32 b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
QUERN_INLINE F32 mul(F32 a, F32 b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
QUERN_INLINE F32 div(F32 a, F32 b) {
  return {_mm512_div_ps(a.v, b.v)};
}
QUERN_INLINE F32 fmadd(F32 a, F32 b, F32 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
QUERN_INLINE F32 min(F32 a, F32 b) {
  return {_mm512_min_ps(a.v, b.v)};
}
QUERN_INLINE F32 max(F32 a, F32 b) {
  return {_mm512_max_ps(a.v, b.v)};
}
QUERN_INLINE F32 sqrt(F32 a) {
  return {_mm512_sqrt_ps(a.v)};
}
QUERN_INLINE I32 bits(F32 a) {
  return {_mm512_castps_si512(a.v)};
}
QUERN_INLINE F32 from_bits(I32 a) {
  return {_mm512_castsi512_ps(a.v)};
}
QUERN_INLINE F32 to_f32(I32 a) {
  return {_mm512_cvtepi32_ps(a.v)};
}
QUERN_INLINE I32 round_i32(F32 a) {
  return {_mm512_cvtps_epi32(a.v)};
}
// Per lane: a < b ? x : y. False for NaN.
QUERN_INLINE F32 select_less(F32 a, F32 b, F32 x, F32 y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
QUERN_INLINE F32 load_f16(const void* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
QUERN_INLINE void store_f16(void* p, F32 a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}

QUERN_INLINE I32 zero_i() {
  return {_mm512_setzero_si512()};
}
QUERN_INLINE I32 set1_i(int32_t x) {
  return {_mm512_set1_epi32(x)};
}
QUERN_INLINE I32 load_i(const void* p) {
  return {_mm512_loadu_si512(p)};
}
QUERN_INLINE void store_i(void* p, I32 a) {
  _mm512_storeu_si512(p, a.v);
}
QUERN_INLINE I32 load_u8(const void* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
QUERN_INLINE I32 load_s8(const void* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
QUERN_INLINE I32 load_u16(const void* p) {
  return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
QUERN_INLINE I32 add_i(I32 a, I32 b) {
  return {_mm512_add_epi32(a.v, b.v)};
}
QUERN_INLINE I32 sub_i(I32 a, I32 b) {
  return {_mm512_sub_epi32(a.v, b.v)};
}
QUERN_INLINE I32 mul_i(I32 a, I32 b) {
  return {_mm512_mullo_epi32(a.v, b.v)};
}
QUERN_INLINE I32 max_i(I32 a, I32 b) {
  return {_mm512_max_epi32(a.v, b.v)};
}
QUERN_INLINE I32 min_i(I32 a, I32 b) {
  return {_mm512_min_epi32(a.v, b.v)};
}
QUERN_INLINE I32 and_i(I32 a, I32 b) {
  return {_mm512_and_si512(a.v, b.v)};
}
QUERN_INLINE I32 or_i(I32 a, I32 b) {
  return {_mm512_or_si512(a.v, b.v)};
}
QUERN_INLINE I32 xor_i(I32 a, I32 b) {
  return {_mm512_xor_si512(a.v, b.v)};
}
template <int n>
QUERN_INLINE I32 shift_left(I32 a) {
  return {_mm512_slli_epi32(a.v, n)};
}
template <int n>
QUERN_INLINE I32 shift_right(I32 a) {  // arithmetic
  return {_mm512_srai_epi32(a.v, n)};
}
template <int n>
QUERN_INLINE I32 shift_right_logical(I32 a) {
  return {_mm512_srli_epi32(a.v, n)};
}
template <int n>
QUERN_INLINE I32 shift_right_u16(I32 a) {  // each uint16
  return {_mm512_srli_epi16(a.v, n)};
}
QUERN_INLINE I32 add_i16(I32 a, I32 b) {
  return {_mm512_add_epi16(a.v, b.v)};
}
// acc + a.lo * b.lo + a.hi * b.hi of the two int16 of each lane.
QUERN_INLINE I32 dot_i16(I32 acc, I32 a, I32 b) {
#if QUERN_ISA_LEVEL >= 4
  return {_mm512_dpwssd_epi32(acc.v, a.v, b.v)};
#else
  return {_mm512_add_epi32(acc.v, _mm512_madd_epi16(a.v, b.v))};
#endif
}
// Pairs of (uint8 of a) * (int8 of b), summed to int16 with saturation.
QUERN_INLINE I32 maddubs(I32 a, I32 b) {
  return {_mm512_maddubs_epi16(a.v, b.v)};
}
// The four bytes at p in every lane.
QUERN_INLINE I32 broadcast4(const void* p) {
  int32_t x;
  std::memcpy(&x, p, 4);
  return {_mm512_set1_epi32(x)};
}
#if QUERN_ISA_LEVEL >= 4
// acc + the dot product of the four uint8 of a and the four int8 of b, in each lane. Exact (no saturation).
QUERN_INLINE I32 dot_u8s8(I32 acc, I32 a, I32 b) {
  return {_mm512_dpbusd_epi32(acc.v, a.v, b.v)};
}
#endif
// The low 16 or 8 bits of each lane, in order.
QUERN_INLINE void store_low16(void* p, I32 a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v));
}
QUERN_INLINE void store_low8(void* p, I32 a) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

// The low 16 bits of each lane; of four lanes in the order 0, 2, 1, 3.
QUERN_INLINE void store_pairs16(void* p, I32 a) {
  const __m256i words = _mm512_cvtepi32_epi16(a.v);
  const __m256i swapped = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xD8), 0xD8);
  _mm256_storeu_si256(static_cast<__m256i*>(p), swapped);
}
// The low 8 bits of each lane of a and of b: four of a, four of b, and so on.
QUERN_INLINE void store_low8_interleaved(void* p, I32 a, I32 b) {
  const __m128i x = _mm512_cvtepi32_epi8(a.v);
  const __m128i y = _mm512_cvtepi32_epi8(b.v);
  auto* q = static_cast<__m128i*>(p);
  _mm_storeu_si128(q, _mm_unpacklo_epi32(x, y));
  _mm_storeu_si128(q + 1, _mm_unpackhi_epi32(x, y));
}
#if QUERN_ISA_LEVEL >= 5
// acc + the dot product of the two bfloat16 of each lane of a and b.
QUERN_INLINE F32 dot_bf16(F32 acc, I32 a, I32 b) {
  return {_mm512_dpbf16_ps(acc.v, (__m512bh)a.v, (__m512bh)b.v)};
}
#endif

QUERN_INLINE __m256 upper_half(__m512 v) {
  return _mm512_extractf32x8_ps(v, 1);
}
QUERN_INLINE __m256i upper_half(__m512i v) {
  return _mm512_extracti32x8_epi32(v, 1);
}
QUERN_INLINE __m256 lower_half(__m512 v) {
  return _mm512_castps512_ps256(v);
}
QUERN_INLINE __m256i lower_half(__m512i v) {
  return _mm512_castsi512_si256(v);
}

#elif QUERN_ISA_LEVEL >= 1  // AVX2: two registers

struct F32 {
  __m256 lo, hi;
};
struct I32 {
  __m256i lo, hi;
};

QUERN_INLINE __m256i half_mask(int n) {  // the first n of 8 lanes
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

QUERN_INLINE F32 zero_f() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
QUERN_INLINE F32 set1(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
QUERN_INLINE F32 load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
QUERN_INLINE void store(float* p, F32 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
QUERN_INLINE F32 load_partial(const float* p, int n) {
  return {_mm256_maskload_ps(p, half_mask(n)), _mm256_maskload_ps(p + 8, half_mask(n - 8))};
}
QUERN_INLINE void store_partial(float* p, F32 a, int n) {
  _mm256_maskstore_ps(p, half_mask(n), a.lo);
  _mm256_maskstore_ps(p + 8, half_mask(n - 8), a.hi);
}
QUERN_INLINE F32 add(F32 a, F32 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
QUERN_INLINE F32 sub(F32 a, F32 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
QUERN_INLINE F32 mul(F32 a, F32 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
QUERN_INLINE F32 div(F32 a, F32 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
QUERN_INLINE F32 fmadd(F32 a, F32 b, F32 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
QUERN_INLINE F32 min(F32 a, F32 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
QUERN_INLINE F32 max(F32 a, F32 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
QUERN_INLINE F32 sqrt(F32 a) {
  return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)};
}
QUERN_INLINE I32 bits(F32 a) {
  return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)};
}
QUERN_INLINE F32 from_bits(I32 a) {
  return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}
QUERN_INLINE F32 to_f32(I32 a) {
  return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
QUERN_INLINE I32 round_i32(F32 a) {
  return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)};
}
QUERN_INLINE F32 select_less(F32 a, F32 b, F32 x, F32 y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
QUERN_INLINE F32 load_f16(const void* p) {
  const auto* q = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
QUERN_INLINE void store_f16(void* p, F32 a) {
  auto* q = static_cast<__m128i*>(p);
  _mm_storeu_si128(q, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(q + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}

QUERN_INLINE I32 zero_i() {
  return {_mm256_setzero_si256(), _mm256_setzero_si256()};
}
QUERN_INLINE I32 set1_i(int32_t x) {
  return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
QUERN_INLINE I32 load_i(const void* p) {
  const auto* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
QUERN_INLINE void store_i(void* p, I32 a) {
  auto* q = static_cast<__m256i*>(p);
  _mm256_storeu_si256(q, a.lo);
  _mm256_storeu_si256(q + 1, a.hi);
}
QUERN_INLINE I32 load_u8(const void* p) {
  const __m128i x = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))};
}
QUERN_INLINE I32 load_s8(const void* p) {
  const __m128i x = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))};
}
QUERN_INLINE I32 load_u16(const void* p) {
  const auto* q = static_cast<const __m128i*>(p);
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1))};
}
QUERN_INLINE I32 add_i(I32 a, I32 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
QUERN_INLINE I32 sub_i(I32 a, I32 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
QUERN_INLINE I32 mul_i(I32 a, I32 b) {
  return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)};
}
QUERN_INLINE I32 max_i(I32 a, I32 b) {
  return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
QUERN_INLINE I32 min_i(I32 a, I32 b) {
  return {_mm256_min_epi32(a.lo, b.lo), _mm256_min_epi32(a.hi, b.hi)};
}
QUERN_INLINE I32 and_i(I32 a, I32 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
QUERN_INLINE I32 or_i(I32 a, I32 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
QUERN_INLINE I32 xor_i(I32 a, I32 b) {
  return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
template <int n>
QUERN_INLINE I32 shift_left(I32 a) {
  return {_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)};
}
template <int n>
QUERN_INLINE I32 shift_right(I32 a) {
  return {_mm256_srai_epi32(a.lo, n), _mm256_srai_epi32(a.hi, n)};
}
template <int n>
QUERN_INLINE I32 shift_right_logical(I32 a) {
  return {_mm256_srli_epi32(a.lo, n), _mm256_srli_epi32(a.hi, n)};
}
template <int n>
QUERN_INLINE I32 shift_right_u16(I32 a) {
  return {_mm256_srli_epi16(a.lo, n), _mm256_srli_epi16(a.hi, n)};
}
QUERN_INLINE I32 add_i16(I32 a, I32 b) {
  return {_mm256_add_epi16(a.lo, b.lo), _mm256_add_epi16(a.hi, b.hi)};
}
QUERN_INLINE I32 dot_i16(I32 acc, I32 a, I32 b) {
#if QUERN_ISA_LEVEL >= 2
  return {_mm256_dpwssd_avx_epi32(acc.lo, a.lo, b.lo), _mm256_dpwssd_avx_epi32(acc.hi, a.hi, b.hi)};
#else
  return {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(a.lo, b.lo)),
          _mm256_add_epi32(acc.hi, _mm256_madd_epi16(a.hi, b.hi))};
#endif
}
QUERN_INLINE I32 maddubs(I32 a, I32 b) {
  return {_mm256_maddubs_epi16(a.lo, b.lo), _mm256_maddubs_epi16(a.hi, b.hi)};
}
QUERN_INLINE I32 broadcast4(const void* p) {
  int32_t x;
  std::memcpy(&x, p, 4);
  const __m256i v = _mm256_set1_epi32(x);
  return {v, v};
}
#if QUERN_ISA_LEVEL >= 2
QUERN_INLINE I32 dot_u8s8(I32 acc, I32 a, I32 b) {
  return {_mm256_dpbusd_avx_epi32(acc.lo, a.lo, b.lo), _mm256_dpbusd_avx_epi32(acc.hi, a.hi, b.hi)};
}
#endif
// The low 16 or 8 bits of each lane, packed in order.
QUERN_INLINE __m256i pack16(I32 a) {
  const __m256i mask = _mm256_set1_epi32(0xFFFF);
  const __m256i packed = _mm256_packus_epi32(_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask));
  return _mm256_permute4x64_epi64(packed, 0xD8);
}
QUERN_INLINE __m128i pack8(I32 a) {
  const __m256i words = _mm256_and_si256(pack16(a), _mm256_set1_epi16(0xFF));
  return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
QUERN_INLINE void store_low16(void* p, I32 a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), pack16(a));
}
QUERN_INLINE void store_low8(void* p, I32 a) {
  _mm_storeu_si128(static_cast<__m128i*>(p), pack8(a));
}
QUERN_INLINE void store_pairs16(void* p, I32 a) {
  const __m256i swapped = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(pack16(a), 0xD8), 0xD8);
  _mm256_storeu_si256(static_cast<__m256i*>(p), swapped);
}
QUERN_INLINE void store_low8_interleaved(void* p, I32 a, I32 b) {
  auto* q = static_cast<__m128i*>(p);
  _mm_storeu_si128(q, _mm_unpacklo_epi32(pack8(a), pack8(b)));
  _mm_storeu_si128(q + 1, _mm_unpackhi_epi32(pack8(a), pack8(b)));
}

QUERN_INLINE __m256 upper_half(F32 a) {
  return a.hi;
}
QUERN_INLINE __m256 lower_half(F32 a) {
  return a.lo;
}
QUERN_INLINE __m256i upper_half(I32 a) {
  return a.hi;
}
QUERN_INLINE __m256i lower_half(I32 a) {
  return a.lo;
}

#else  // portable: four vectors of the compiler's own, which every machine has in some form

using Float4 = float __attribute__((vector_size(16)));
using Int4 = int32_t __attribute__((vector_size(16)));
using Uint4 = uint32_t __attribute__((vector_size(16)));

struct F32 {
  Float4 q[4];
};
struct I32 {
  Int4 q[4];
};

// An expression in `i`, a quarter, for each quarter of the result.
#define QUERN_QUARTERS(Type, expression)                  \
  Type result;                                            \
  for (int i = 0; i < 4; ++i) result.q[i] = (expression); \
  return result

// Two's complement, wrapping, and logical shifts: by way of unsigned numbers.
QUERN_INLINE Uint4 u(Int4 a) {
  return (Uint4)a;
}
QUERN_INLINE Int4 s(Uint4 a) {
  return (Int4)a;
}
QUERN_INLINE Float4 pick(Int4 mask, Float4 x, Float4 y) {
  return (Float4)((mask & (Int4)x) | (~mask & (Int4)y));
}

QUERN_INLINE F32 set1(float x) {
  QUERN_QUARTERS(F32, (Float4{x, x, x, x}));
}
QUERN_INLINE F32 zero_f() {
  return set1(0.0F);
}
QUERN_INLINE F32 load(const float* p) {
  F32 r;
  std::memcpy(&r, p, sizeof(r));
  return r;
}
QUERN_INLINE void store(float* p, F32 a) {
  std::memcpy(p, &a, sizeof(a));
}
QUERN_INLINE F32 load_partial(const float* p, int n) {
  F32 r = zero_f();
  if (n > 0) std::memcpy(&r, p, static_cast<size_t>(n < 16 ? n : 16) * 4);
  return r;
}
QUERN_INLINE void store_partial(float* p, F32 a, int n) {
  if (n > 0) std::memcpy(p, &a, static_cast<size_t>(n < 16 ? n : 16) * 4);
}
QUERN_INLINE F32 add(F32 a, F32 b) {
  QUERN_QUARTERS(F32, a.q[i] + b.q[i]);
}
QUERN_INLINE F32 sub(F32 a, F32 b) {
  QUERN_QUARTERS(F32, a.q[i] - b.q[i]);
}
QUERN_INLINE F32 mul(F32 a, F32 b) {
  QUERN_QUARTERS(F32, a.q[i] * b.q[i]);
}
QUERN_INLINE F32 div(F32 a, F32 b) {
  QUERN_QUARTERS(F32, a.q[i] / b.q[i]);
}
QUERN_INLINE F32 fmadd(F32 a, F32 b, F32 c) {
  QUERN_QUARTERS(F32, a.q[i] * b.q[i] + c.q[i]);
}
QUERN_INLINE F32 min(F32 a, F32 b) {
  QUERN_QUARTERS(F32, pick(a.q[i] < b.q[i], a.q[i], b.q[i]));
}
QUERN_INLINE F32 max(F32 a, F32 b) {
  QUERN_QUARTERS(F32, pick(a.q[i] > b.q[i], a.q[i], b.q[i]));
}
QUERN_INLINE F32 sqrt(F32 a) {
  float x[16];
  store(x, a);
  for (float& v : x) v = __builtin_sqrtf(v);
  return load(x);
}
QUERN_INLINE I32 bits(F32 a) {
  QUERN_QUARTERS(I32, (Int4)a.q[i]);
}
QUERN_INLINE F32 from_bits(I32 a) {
  QUERN_QUARTERS(F32, (Float4)a.q[i]);
}
QUERN_INLINE F32 to_f32(I32 a) {
  QUERN_QUARTERS(F32, __builtin_convertvector(a.q[i], Float4));
}
// |a| below 2^22: adding and taking off 1.5 * 2^23 rounds to nearest even.
QUERN_INLINE I32 round_i32(F32 a) {
  const F32 magic = set1(12582912.0F);
  QUERN_QUARTERS(I32, __builtin_convertvector((a.q[i] + magic.q[i]) - magic.q[i], Int4));
}
QUERN_INLINE F32 select_less(F32 a, F32 b, F32 x, F32 y) {
  QUERN_QUARTERS(F32, pick(a.q[i] < b.q[i], x.q[i], y.q[i]));
}

QUERN_INLINE I32 set1_i(int32_t x) {
  QUERN_QUARTERS(I32, (Int4{x, x, x, x}));
}
QUERN_INLINE I32 zero_i() {
  return set1_i(0);
}
QUERN_INLINE I32 load_i(const void* p) {
  I32 r;
  std::memcpy(&r, p, sizeof(r));
  return r;
}
QUERN_INLINE void store_i(void* p, I32 a) {
  std::memcpy(p, &a, sizeof(a));
}
// Sixteen elements of a narrower type, widened, and back: the low bits of each lane.
template <class T>
QUERN_INLINE I32 widen(const void* p) {
  T narrow[16];
  int32_t wide[16];
  std::memcpy(narrow, p, sizeof(narrow));
  for (int i = 0; i < 16; ++i) wide[i] = narrow[i];
  return load_i(wide);
}
template <class T>
QUERN_INLINE void narrow(void* p, I32 a) {
  T narrow[16];
  int32_t wide[16];
  store_i(wide, a);
  for (int i = 0; i < 16; ++i) narrow[i] = static_cast<T>(wide[i]);
  std::memcpy(p, narrow, sizeof(narrow));
}
QUERN_INLINE I32 load_u8(const void* p) {
  return widen<uint8_t>(p);
}
QUERN_INLINE I32 load_s8(const void* p) {
  return widen<int8_t>(p);
}
QUERN_INLINE I32 load_u16(const void* p) {
  return widen<uint16_t>(p);
}
QUERN_INLINE I32 add_i(I32 a, I32 b) {
  QUERN_QUARTERS(I32, s(u(a.q[i]) + u(b.q[i])));
}
QUERN_INLINE I32 sub_i(I32 a, I32 b) {
  QUERN_QUARTERS(I32, s(u(a.q[i]) - u(b.q[i])));
}
QUERN_INLINE I32 mul_i(I32 a, I32 b) {
  QUERN_QUARTERS(I32, s(u(a.q[i]) * u(b.q[i])));
}
QUERN_INLINE I32 max_i(I32 a, I32 b) {
  QUERN_QUARTERS(I32, ((a.q[i] > b.q[i]) & a.q[i]) | (~(a.q[i] > b.q[i]) & b.q[i]));
}
QUERN_INLINE I32 min_i(I32 a, I32 b) {
  QUERN_QUARTERS(I32, ((a.q[i] < b.q[i]) & a.q[i]) | (~(a.q[i] < b.q[i]) & b.q[i]));
}
QUERN_INLINE I32 and_i(I32 a, I32 b) {
  QUERN_QUARTERS(I32, a.q[i] & b.q[i]);
}
QUERN_INLINE I32 or_i(I32 a, I32 b) {
  QUERN_QUARTERS(I32, a.q[i] | b.q[i]);
}
QUERN_INLINE I32 xor_i(I32 a, I32 b) {
  QUERN_QUARTERS(I32, a.q[i] ^ b.q[i]);
}
template <int n>
QUERN_INLINE I32 shift_left(I32 a) {
  QUERN_QUARTERS(I32, s(u(a.q[i]) << n));
}
template <int n>
QUERN_INLINE I32 shift_right(I32 a) {
  QUERN_QUARTERS(I32, a.q[i] >> n);
}
template <int n>
QUERN_INLINE I32 shift_right_logical(I32 a) {
  QUERN_QUARTERS(I32, s(u(a.q[i]) >> n));
}
template <int n>
QUERN_INLINE I32 shift_right_u16(I32 a) {
  constexpr uint32_t kKeep = (0xFFFFU >> n) * 0x10001U;
  QUERN_QUARTERS(I32, s((u(a.q[i]) >> n) & (Uint4{kKeep, kKeep, kKeep, kKeep})));
}
QUERN_INLINE Int4 low16(Int4 a) {
  return s(u(a) << 16) >> 16;
}
QUERN_INLINE Int4 high16(Int4 a) {
  return a >> 16;
}
QUERN_INLINE I32 dot_i16(I32 acc, I32 a, I32 b) {
  QUERN_QUARTERS(
      I32, s(u(acc.q[i]) + u(low16(a.q[i])) * u(low16(b.q[i])) + u(high16(a.q[i])) * u(high16(b.q[i]))));
}
QUERN_INLINE I32 broadcast4(const void* p) {
  int32_t x;
  std::memcpy(&x, p, 4);
  return set1_i(x);
}
template <int n>
QUERN_INLINE Uint4 byte_product(Int4 a, Int4 b) {  // byte n, unsigned of a and signed of b
  return ((u(a) >> (8 * n)) & (Uint4{255, 255, 255, 255})) * u(s(u(b) << (24 - 8 * n)) >> 24);
}
QUERN_INLINE I32 dot_u8s8(I32 acc, I32 a, I32 b) {
  QUERN_QUARTERS(I32, s(u(acc.q[i]) + byte_product<0>(a.q[i], b.q[i]) + byte_product<1>(a.q[i], b.q[i]) +
                        byte_product<2>(a.q[i], b.q[i]) + byte_product<3>(a.q[i], b.q[i])));
}
QUERN_INLINE F32 dot_bf16(F32 acc, I32 a, I32 b) {
  const I32 mask = set1_i(static_cast<int32_t>(0xFFFF0000U));
  const F32 odd = fmadd(from_bits(and_i(a, mask)), from_bits(and_i(b, mask)), acc);
  return fmadd(from_bits(shift_left<16>(a)), from_bits(shift_left<16>(b)), odd);
}
QUERN_INLINE void store_low16(void* p, I32 a) {
  narrow<uint16_t>(p, a);
}
QUERN_INLINE void store_low8(void* p, I32 a) {
  narrow<uint8_t>(p, a);
}
QUERN_INLINE void store_pairs16(void* p, I32 a) {
  uint16_t words[16];
  uint16_t out[16];
  narrow<uint16_t>(words, a);
  for (int i = 0; i < 16; ++i) out[i] = words[(i & 12) | ((i & 1) << 1) | ((i & 2) >> 1)];
  std::memcpy(p, out, sizeof(out));
}
QUERN_INLINE void store_low8_interleaved(void* p, I32 a, I32 b) {
  uint8_t x[16];
  uint8_t y[16];
  narrow<uint8_t>(x, a);
  narrow<uint8_t>(y, b);
  auto* q = static_cast<uint8_t*>(p);
  for (int i = 0; i < 16; i += 4) {
    std::memcpy(q + 2 * i, x + i, 4);
    std::memcpy(q + 2 * i + 4, y + i, 4);
  }
}
// binary16, by integer arithmetic on whole vectors.
QUERN_INLINE F32 load_f16(const void* p) {
  const I32 h = load_u16(p);
  const I32 sign = shift_left<16>(and_i(h, set1_i(0x8000)));
  const I32 magnitude = shift_left<13>(and_i(h, set1_i(0x7FFF)));
  const I32 normal = add_i(magnitude, set1_i(112 << 23));
  // A subnormal is its fraction times 2^-24: put it under the implicit one of 2^-14 and take that off.
  const F32 subnormal = sub(from_bits(add_i(magnitude, set1_i(113 << 23))), set1(6.103515625e-05F));
  const I32 special = add_i(magnitude, set1_i(224 << 23));  // infinity and NaN
  const F32 size = to_f32(magnitude);                       // below 2^28, exact enough to compare
  const F32 finite = select_less(size, set1(8388608.0F), subnormal, from_bits(normal));
  const F32 value = select_less(size, set1(260046848.0F), finite, from_bits(special));
  return from_bits(or_i(bits(value), sign));
}
QUERN_INLINE uint16_t half_of(float x) {
  uint32_t word;
  std::memcpy(&word, &x, 4);
  const auto sign = static_cast<uint16_t>((word >> 16) & 0x8000U);
  word &= 0x7FFFFFFFU;
  if (word > 0x7F800000U) return static_cast<uint16_t>(sign | 0x7E00U | ((word >> 13) & 0x1FFU));
  if (word >= 0x477FF000U) return static_cast<uint16_t>(sign | 0x7C00U);  // 65520 and up: infinity
  if (word < 0x38800000U) {  // below 2^-14: added to 0.5, the fraction ends at 2^-24, rounded
    float magnitude;
    std::memcpy(&magnitude, &word, 4);
    magnitude += 0.5F;
    std::memcpy(&word, &magnitude, 4);
    return static_cast<uint16_t>(sign | (word - 0x3F000000U));
  }
  word += 0xFFFU + ((word >> 13) & 1U);
  return static_cast<uint16_t>(sign | ((word - (112U << 23)) >> 13));
}
QUERN_INLINE void store_f16(void* p, F32 a) {
  float x[16];
  uint16_t h[16];
  store(x, a);
  for (int i = 0; i < 16; ++i) h[i] = half_of(x[i]);
  std::memcpy(p, h, sizeof(h));
}

#endif

// Which of the dot products above there are; level 0 has them all, slowly.
#define QUERN_HAS_DOT_U8S8 (QUERN_ISA_LEVEL == 0 || QUERN_ISA_LEVEL == 2 || QUERN_ISA_LEVEL >= 4)
#define QUERN_HAS_DOT_BF16 (QUERN_ISA_LEVEL == 0 || QUERN_ISA_LEVEL >= 5)
#define QUERN_HAS_MADDUBS (QUERN_ISA_LEVEL >= 1)

// Reductions.
#if QUERN_ISA_LEVEL >= 1
#if QUERN_ISA_LEVEL >= 3
QUERN_INLINE __m256 upper_half(F32 a) {
  return upper_half(a.v);
}
QUERN_INLINE __m256 lower_half(F32 a) {
  return lower_half(a.v);
}
QUERN_INLINE __m256i upper_half(I32 a) {
  return upper_half(a.v);
}
QUERN_INLINE __m256i lower_half(I32 a) {
  return lower_half(a.v);
}
#endif
QUERN_INLINE float reduce_add(F32 a) {
  const __m256 eight = _mm256_add_ps(lower_half(a), upper_half(a));
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
QUERN_INLINE float reduce_max(F32 a) {
  const __m256 eight = _mm256_max_ps(lower_half(a), upper_half(a));
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
QUERN_INLINE int32_t reduce_add(I32 a) {
  const __m256i eight = _mm256_add_epi32(lower_half(a), upper_half(a));
  __m128i x = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xB1)));
}
QUERN_INLINE int32_t reduce_max(I32 a) {
  const __m256i eight = _mm256_max_epi32(lower_half(a), upper_half(a));
  __m128i x = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(x, _mm_shuffle_epi32(x, 0xB1)));
}
#else
template <class T, class Combine>
QUERN_INLINE T reduce(T (&x)[16], const Combine& combine) {
  for (int n = 8; n >= 1; n /= 2) {
    for (int i = 0; i < n; ++i) x[i] = combine(x[i], x[i + n]);
  }
  return x[0];
}
QUERN_INLINE float reduce_add(F32 a) {
  float x[16];
  store(x, a);
  return reduce(x, [](float p, float q) { return p + q; });
}
QUERN_INLINE float reduce_max(F32 a) {
  float x[16];
  store(x, a);
  return reduce(x, [](float p, float q) { return p > q ? p : q; });
}
QUERN_INLINE int32_t reduce_add(I32 a) {
  uint32_t x[16];
  store_i(x, a);
  return static_cast<int32_t>(reduce(x, [](uint32_t p, uint32_t q) { return p + q; }));
}
QUERN_INLINE int32_t reduce_max(I32 a) {
  int32_t x[16];
  store_i(x, a);
  return reduce(x, [](int32_t p, int32_t q) { return p > q ? p : q; });
}
#endif

// The same on every level.
QUERN_INLINE F32 abs(F32 a) {
  return from_bits(and_i(bits(a), set1_i(0x7FFFFFFF)));
}
QUERN_INLINE F32 neg(F32 a) {
  return from_bits(xor_i(bits(a), set1_i(INT32_MIN)));
}
// Sixteen bfloat16 in memory order.
QUERN_INLINE F32 load_bf16(const void* p) {
  return from_bits(shift_left<16>(load_u16(p)));
}
// The bits of a as bfloat16, rounded to nearest even, in the low half of each lane; NaN stays NaN.
QUERN_INLINE I32 to_bf16(F32 a) {
  const I32 word = bits(a);
  const I32 odd = and_i(shift_right_logical<16>(word), set1_i(1));
  const I32 rounded = shift_right_logical<16>(add_i(word, add_i(odd, set1_i(0x7FFF))));
  const F32 infinity = from_bits(set1_i(0x7F800000));
  const F32 quiet_nan = from_bits(or_i(shift_right_logical<16>(word), set1_i(0x40)));
  // |a| <= infinity is false for NaN alone.
  const F32 beyond = from_bits(set1_i(0x7F7FFFFF));
  const F32 finite = select_less(abs(a), infinity, from_bits(rounded), quiet_nan);
  const F32 is_infinite = select_less(beyond, abs(a), from_bits(shift_right_logical<16>(word)), finite);
  return bits(is_infinite);
}
QUERN_INLINE void store_bf16(void* p, F32 a) {
  store_low16(p, to_bf16(a));
}

// Makes the compiler have the value in registers at this point of the program.
QUERN_INLINE void pin(I32& a) {
#if QUERN_ISA_LEVEL >= 3
  __asm__("" : "+v"(a.v));
#elif QUERN_ISA_LEVEL >= 1
  __asm__("" : "+x"(a.lo), "+x"(a.hi));
#else
  (void)a;
#endif
}
QUERN_INLINE void pin(F32& a) {
#if QUERN_ISA_LEVEL >= 3
  __asm__("" : "+v"(a.v));
#elif QUERN_ISA_LEVEL >= 1
  __asm__("" : "+x"(a.lo), "+x"(a.hi));
#else
  (void)a;
#endif
}

}  // namespace quern::cpu::QUERN_ISA
