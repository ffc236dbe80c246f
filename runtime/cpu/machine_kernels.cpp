#include "runtime/cpu/machine.h"
#include "runtime/cpu/simd.h"

namespace quern::cpu::QUERN_ISA {
namespace {

// Enough independent chains to hide the latency of a multiply-add on two pipes. One chain is one half-vector
// where F32 is two registers, hence fewer of them there: 16 registers must hold them all.
#if QUERN_ISA_LEVEL >= 3
constexpr int kChains = 12;
#else
constexpr int kChains = 6;
#endif
constexpr int64_t kLaneOperations = 2 * kLanes * kChains;

// A number that the compiler cannot know, so that the loops are not computed at compile time.
int32_t opaque(int32_t x) {
  __asm__ volatile("" : "+r"(x));
  return x;
}

int32_t read(const void* data, int64_t bytes) {
  const auto* p = static_cast<const std::byte*>(data);
  const int64_t quarter = bytes / 4;
  I32 a = zero_i();
  I32 b = zero_i();
  I32 c = zero_i();
  I32 d = zero_i();
  for (int64_t i = 0; i < quarter; i += 128) {
    a = add_i(a, add_i(load_i(p + i), load_i(p + i + 64)));
    b = add_i(b, add_i(load_i(p + quarter + i), load_i(p + quarter + i + 64)));
    c = add_i(c, add_i(load_i(p + 2 * quarter + i), load_i(p + 2 * quarter + i + 64)));
    d = add_i(d, add_i(load_i(p + 3 * quarter + i), load_i(p + 3 * quarter + i + 64)));
  }
  return reduce_add(add_i(add_i(a, b), add_i(c, d)));
}

// `rounds` times `step` on each accumulator.
template <class Acc, class Step>
QUERN_INLINE void chains(int64_t rounds, Acc (&acc)[kChains], const Step& step) {
  for (int64_t i = 0; i < rounds; ++i) {
    QUERN_UNROLL
    for (int c = 0; c < kChains; ++c) {
      acc[c] = step(acc[c]);
      pin(acc[c]);
    }
  }
}

QUERN_INLINE float sum_chains(const F32 (&acc)[kChains]) {
  F32 sum = zero_f();
  QUERN_UNROLL
  for (int c = 0; c < kChains; ++c) sum = add(sum, acc[c]);
  return reduce_add(sum);
}

QUERN_INLINE int32_t sum_chains(const I32 (&acc)[kChains]) {
  I32 sum = zero_i();
  QUERN_UNROLL
  for (int c = 0; c < kChains; ++c) sum = add_i(sum, acc[c]);
  return reduce_add(sum);
}

float fp32(int64_t rounds) {
  F32 acc[kChains];
  QUERN_UNROLL
  for (int c = 0; c < kChains; ++c) acc[c] = set1(static_cast<float>(c));
  const F32 x = set1(static_cast<float>(opaque(1)) * 0.5F);
  chains(rounds, acc, [=](F32 a) { return fmadd(a, x, x); });
  return sum_chains(acc);
}

float bf16(int64_t rounds) {
#if QUERN_HAS_DOT_BF16
  F32 acc[kChains];
  QUERN_UNROLL
  for (int c = 0; c < kChains; ++c) acc[c] = zero_f();
  const I32 x = set1_i(opaque(0x3F003F00));
  chains(rounds, acc, [=](F32 a) { return dot_bf16(a, x, x); });
  return sum_chains(acc);
#else
  return static_cast<float>(rounds);
#endif
}

// Where no instruction multiplies bytes exactly, they are widened to 16 bits. The accumulator is one factor:
// with two constant ones the product would be computed once, outside of the loop.
int32_t int8(int64_t rounds) {
  I32 acc[kChains];
  QUERN_UNROLL
  for (int c = 0; c < kChains; ++c) acc[c] = set1_i(c + 0x00030003);
  const I32 x = set1_i(opaque(0x00010001));
#if QUERN_ISA_LEVEL == 0 || !QUERN_HAS_DOT_U8S8
  chains(rounds, acc, [=](I32 a) { return dot_i16(a, a, x); });
#else
  chains(rounds, acc, [=](I32 a) { return dot_u8s8(a, x, x); });
#endif
  return sum_chains(acc);
}

int32_t int4(int64_t rounds) {
#if QUERN_HAS_DOT_U8S8 || !QUERN_HAS_MADDUBS
  return int8(rounds);
#else
  // Byte products may be added up in 16 bits for eight steps (linear_kernels.cpp).
  I32 acc[kChains];
  I32 sum[kChains];
  QUERN_UNROLL
  for (int c = 0; c < kChains; ++c) {
    acc[c] = set1_i(c);
    sum[c] = zero_i();
  }
  const I32 x = set1_i(opaque(0x01010101));
  const I32 ones = set1_i(0x00010001);
  for (int64_t i = 0; i < rounds; i += 8) {
    chains(8, acc, [=](I32 a) { return add_i16(a, maddubs(a, x)); });
    QUERN_UNROLL
    for (int c = 0; c < kChains; ++c) sum[c] = dot_i16(sum[c], acc[c], ones);
  }
  return sum_chains(sum) + sum_chains(acc);
#endif
}

#if QUERN_HAS_DOT_U8S8 && QUERN_ISA_LEVEL > 0
constexpr int64_t kInt8PerLane = 4;
#else
constexpr int64_t kInt8PerLane = 2;
#endif
#if QUERN_HAS_MADDUBS
constexpr int64_t kInt4PerLane = 4;
#else
constexpr int64_t kInt4PerLane = 2;
#endif

}  // namespace

extern const MachineKernels machine_kernels;
const MachineKernels machine_kernels = {read,
                                        fp32,
                                        bf16,
                                        int8,
                                        int4,
                                        kLaneOperations,
                                        QUERN_HAS_DOT_BF16&& QUERN_ISA_LEVEL > 0 ? 2 * kLaneOperations : 0,
                                        kInt8PerLane* kLaneOperations,
                                        kInt4PerLane* kLaneOperations};

}  // namespace quern::cpu::QUERN_ISA
