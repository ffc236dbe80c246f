// Products with packed weights, compiled once per instruction set (isa.h). The streams are described in
// ir/packed_tensor.h, the inputs in activations.h.
//
// A micro-kernel computes R rows times T tiles in R * T vector accumulators, straight from the weights'
// stream: it unpacks in registers, between the multiplications. (Unpacking a panel into memory first, for all
// rows, was measured and was slower for every format.) For up to kMaxRows rows it runs over whole tiles, each
// read once. More rows are cut into blocks, and the columns too, so that a block's inputs stay in the
// second-level cache and the tiles' columns in the first-level one; accumulators then wait in memory:
//
//   for each block of rows
//     for each few tiles
//       for each block of columns
//         for each T tiles
//           for each R rows of the block: micro-kernel
//       epilogue
//
// None of this changes a row's result: integer sums are exact, and floats add up in ascending order of
// columns in an accumulator of their own, whether it waits in a register or in memory.
//
// The file is long because the micro-kernels, the loops around them and the choice of both belong together.
#include "runtime/cpu/linear_kernels.h"

#include "runtime/cpu/unary_inline.h"

namespace quern::cpu::QUERN_ISA {
namespace {

constexpr int64_t kTile = 16;

// Rows of a micro-kernel at most, and how many tiles it may take at once: as many accumulators as leave
// registers for weights and inputs (there are 32 of a whole vector at AVX-512, 16 of half a vector at AVX2,
// 16 of a quarter, at worst, at level 0), and no more instances than pay.
#if QUERN_ISA_LEVEL >= 3
constexpr int kMaxRows = 8;
#define QUERN_EACH_ROW_COUNT(X) X(1), X(2), X(3), X(4), X(5), X(6), X(7), X(8)
constexpr bool is_allowed(int rows, int tiles, int accumulators) {
  if (tiles == 4) return rows * accumulators <= 2;
  return tiles == 1 || rows * accumulators <= 12;
}
#elif QUERN_ISA_LEVEL >= 1
constexpr int kMaxRows = 6;
#define QUERN_EACH_ROW_COUNT(X) X(1), X(2), X(3), X(4), X(5), X(6)
constexpr bool is_allowed(int rows, int tiles, int accumulators) {
  return tiles == 1 || rows * tiles * accumulators <= 4;
}
#else
constexpr int kMaxRows = 2;
#define QUERN_EACH_ROW_COUNT(X) X(1), X(2)
constexpr bool is_allowed(int, int tiles, int) {
  return tiles == 1;
}
#endif

// Scratch: accumulators of a block of rows times a few tiles and as many carried integer sums, both twice for
// gated products; scales of listed rows.
constexpr int64_t kRowBlock = 96;
constexpr int64_t kTileGroup = 8;
constexpr int64_t kAccFloats = kRowBlock * kTileGroup * kTile;
constexpr int64_t kInfoBytes = 32 * 1024;
static_assert(kAccFloats * 4 * 4 + kInfoBytes <= 256 * 1024);
// Of a row's inputs in a block of columns: with kRowBlock rows, 96 kB.
constexpr int64_t kBlockInputBytes = 1024;
constexpr int64_t kLine = 64;
// How far ahead a few rows' kernel prefetches the stream, in bytes: the latency of memory times a core's
// share of the bandwidth is some 1.5 kB, and the reads of others come in between.
constexpr int64_t kAhead = 4096;

QUERN_INLINE int64_t min64(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// ---- Dot products of integer codes: a step is kColumns columns of 16 outputs (one 64-byte vector of
// weights) with the kInputBytes of the inputs that belong to it.

struct DotS16 {
  static constexpr int kColumns = 2;
  static constexpr int kInputBytes = 4;
  static constexpr int kAccumulators = 1;
  static constexpr int kFlushSteps = 0;  // never
  using Input = I32;
  struct Acc {
    I32 sum;
  };
  static QUERN_INLINE Acc start(I32 carried) { return {carried}; }
  static QUERN_INLINE Input input(const std::byte* p) { return broadcast4(p); }
  static QUERN_INLINE void step(Acc& acc, I32 w, Input in) { acc.sum = dot_i16(acc.sum, w, in); }
  static QUERN_INLINE void keep(Acc& acc) { pin(acc.sum); }
  static QUERN_INLINE void flush(Acc&) {}
  static QUERN_INLINE I32 total(const Acc& acc) { return acc.sum; }
};

#if QUERN_HAS_DOT_U8S8
struct DotU8S8 {
  static constexpr int kAccumulators = 1;
  static constexpr int kColumns = 4;
  static constexpr int kInputBytes = 4;
  static constexpr int kFlushSteps = 0;
  using Input = I32;
  struct Acc {
    I32 sum;
  };
  static QUERN_INLINE Acc start(I32 carried) { return {carried}; }
  static QUERN_INLINE Input input(const std::byte* p) { return broadcast4(p); }
  static QUERN_INLINE void step(Acc& acc, I32 w, Input in) { acc.sum = dot_u8s8(acc.sum, w, in); }
  static QUERN_INLINE void keep(Acc&) {}
  static QUERN_INLINE void flush(Acc&) {}
  static QUERN_INLINE I32 total(const Acc& acc) { return acc.sum; }
};

// 16-bit inputs as 256 * hi + lo.
struct DotU8HiLo {
  static constexpr int kAccumulators = 2;
  static constexpr int kColumns = 4;
  static constexpr int kInputBytes = 8;
  static constexpr int kFlushSteps = 0;
  struct Input {
    I32 hi, lo;
  };
  struct Acc {
    I32 hi, lo;
  };
  static QUERN_INLINE Acc start(I32 carried) { return {zero_i(), carried}; }
  static QUERN_INLINE Input input(const std::byte* p) { return {broadcast4(p), broadcast4(p + 4)}; }
  static QUERN_INLINE void step(Acc& acc, I32 w, Input in) {
    acc.hi = dot_u8s8(acc.hi, w, in.hi);
    acc.lo = dot_u8s8(acc.lo, w, in.lo);
  }
  static QUERN_INLINE void keep(Acc&) {}
  static QUERN_INLINE void flush(Acc&) {}
  static QUERN_INLINE I32 total(const Acc& acc) { return add_i(shift_left<8>(acc.hi), acc.lo); }
};
#endif

#if QUERN_HAS_MADDUBS
// Four-bit codes only: a step adds at most 2 * 15 * 127 = 3810 to an int16, so that eight steps cannot
// overflow it.
struct DotU4S8 {
  static constexpr int kAccumulators = 1;  // the other is only touched every kFlushSteps
  static constexpr int kColumns = 4;
  static constexpr int kInputBytes = 4;
  static constexpr int kFlushSteps = 8;
  using Input = I32;
  struct Acc {
    I32 sum16, sum;
  };
  static QUERN_INLINE Acc start(I32 carried) { return {zero_i(), carried}; }
  static QUERN_INLINE Input input(const std::byte* p) { return broadcast4(p); }
  static QUERN_INLINE void step(Acc& acc, I32 w, Input in) { acc.sum16 = add_i16(acc.sum16, maddubs(w, in)); }
  static QUERN_INLINE void keep(Acc& acc) { pin(acc.sum16); }
  static QUERN_INLINE void flush(Acc& acc) {
    acc.sum = dot_i16(acc.sum, acc.sum16, set1_i(0x00010001));
    acc.sum16 = zero_i();
  }
  static QUERN_INLINE I32 total(const Acc& acc) { return acc.sum; }
};
#endif

// ---- Where a step's weights come from: kSteps of a Dot from each 64 bytes of the stream.

template <class Dot>
struct FromU8 {
  static constexpr int kSteps = 4 / Dot::kColumns;
  static constexpr int kMiddleBit = 7;  // of the codes' range: the zero point where there is no other
  template <int s>
  static QUERN_INLINE I32 step(I32 v) {
    if constexpr (Dot::kColumns == 4) {
      return v;
    } else {  // the even bytes and the odd bytes, as int16
      return s == 0 ? and_i(v, set1_i(0x00FF00FF)) : shift_right_u16<8>(v);
    }
  }
};

template <class Dot>
struct FromU4 {
  static constexpr int kSteps = 8 / Dot::kColumns;
  static constexpr int kMiddleBit = 3;
  template <int s>
  static QUERN_INLINE I32 step(I32 v) {
    if constexpr (Dot::kColumns == 4) {
      return and_i(s == 0 ? v : shift_right_u16<4>(v), set1_i(0x0F0F0F0F));
    } else {  // columns (0, 2), (1, 3), (4, 6), (5, 7)
      constexpr int kShift = s == 0 ? 0 : (s == 1 ? 8 : (s == 2 ? 4 : 12));
      const I32 shifted = kShift == 0 ? v : shift_right_u16<kShift>(v);
      return s == 3 ? shifted : and_i(shifted, set1_i(0x000F000F));
    }
  }
};

// ---- Micro-kernels.

struct MicroArgs {
  const WeightView* weight;
  const std::byte* const* rows;  // [R], their codes
  const BlockInfo* info;         // of the first row's block 0
  int64_t info_stride;           // from block to block
  int64_t block;                 // columns
  const std::byte* tile;         // the first one
  int64_t k_begin, k_end;        // columns; k_begin of a whole vector of weights, k_end likewise or the end
  float* acc;                    // [R][T][kTile], added to
  int32_t* carried;              // like acc: sums of a block that began before k_begin or ends after k_end
  // Prefetched along the way: the inputs of the next rows, this many bytes on (0: none), and what is to be
  // read of the next tiles, so many lines for each line of inputs (next[t] = next_tile + t * tile_stride).
  int64_t next_rows;
  const std::byte* next_tile;
  int64_t next_lines;
};

using Micro = void (*)(const MicroArgs&);

// What is prefetched beside one line of the inputs at in[r].
template <int R, int T, class Input>
QUERN_INLINE void prefetch(const MicroArgs& a, const Input* const (&in)[R], const std::byte*& next_tile) {
  if (a.next_rows != 0) {
    QUERN_UNROLL
    for (int r = 0; r < R; ++r) {
      __builtin_prefetch(reinterpret_cast<const std::byte*>(in[r]) + a.next_rows);
    }
  }
  for (int64_t i = 0; i < a.next_lines; ++i) {
    QUERN_UNROLL
    for (int t = 0; t < T; ++t) __builtin_prefetch(next_tile + t * a.weight->tile_stride);
    next_tile += kLine;
  }
}

QUERN_INLINE F32 load_scales(const WeightView& weight, const std::byte* header) {
  return weight.half_scales ? load_f16(header) : load(reinterpret_cast<const float*>(header));
}

QUERN_INLINE I32 load_zero_points(const WeightView& weight, const std::byte* header) {
  if (!weight.grouped) return load_i(header + 4 * kTile);
  return load_u8(header + (weight.half_scales ? 2 : 4) * kTile);
}

// What a block's sums begin with: the offset of the zero point that all of a symmetric weight's codes share,
// the middle of their range, a power of two. `offset` is minus the sum of the block's inputs.
QUERN_INLINE I32 constant_offset(const WeightView& weight, int32_t offset) {
  if (weight.zero_points) return zero_i();
  const I32 minus_sum = set1_i(offset);
  return weight.kind == WeightKind::U8 ? shift_left<7>(minus_sum) : shift_left<3>(minus_sum);
}

// acc += to_f32(sum - zero_point * sum_of_inputs) * (weight scale * input scale), of one block. The offset of
// a constant zero point is in the sums already.
template <class Dot, int R, int T>
QUERN_INLINE void add_block(const MicroArgs& a, const std::byte* header, const BlockInfo* info,
                            const typename Dot::Acc (&sums)[R][T]) {
  const WeightView& weight = *a.weight;
  QUERN_UNROLL
  for (int t = 0; t < T; ++t) {
    const std::byte* tile_header = header + t * weight.tile_stride;
    const F32 scales = load_scales(weight, tile_header);
    QUERN_UNROLL
    for (int r = 0; r < R; ++r) {
      float* acc = a.acc + (r * T + t) * kTile;
      I32 sum = Dot::total(sums[r][t]);
      if (weight.zero_points) {
        sum = add_i(sum, mul_i(load_zero_points(weight, tile_header), set1_i(info[r].offset)));
      }
      store(acc, fmadd(to_f32(sum), mul(scales, set1(info[r].scale)), load(acc)));
    }
  }
}

// The steps of one 64-byte vector of tile t, for all rows. A step's weights are unpacked just before they are
// used, and keep() pins the order: left alone, the compiler would unpack all of them and add up late, which
// takes more registers than there are.
template <class Dot, template <class> class Source, int R, int T, int s = 0>
QUERN_INLINE void multiply(I32 v, const std::byte* const (&in)[R], int t, typename Dot::Acc (&acc)[R][T]) {
  const I32 w = Source<Dot>::template step<s>(v);
  QUERN_UNROLL
  for (int r = 0; r < R; ++r) {
    Dot::step(acc[r][t], w, Dot::input(in[r] + s * Dot::kInputBytes));
    Dot::keep(acc[r][t]);
  }
  if constexpr (s + 1 < Source<Dot>::kSteps) multiply<Dot, Source, R, T, s + 1>(v, in, t, acc);
}

// Vectors of weights between flushes, or for a line of inputs.
template <class Dot, template <class> class Source>
constexpr int64_t chunk_of() {
  return (Dot::kFlushSteps != 0 ? Dot::kFlushSteps : kLine / Dot::kInputBytes) / Source<Dot>::kSteps;
}

// Some vectors of the tiles' codes, for all rows; goes on to what follows them.
template <class Dot, template <class> class Source, int R, int T>
QUERN_INLINE void multiply_vectors(const std::byte*& codes, int64_t tile_stride, int64_t vectors,
                                   const std::byte* (&in)[R], typename Dot::Acc (&acc)[R][T]) {
  for (int64_t i = 0; i < vectors; ++i) {
    QUERN_UNROLL
    for (int t = 0; t < T; ++t) multiply<Dot, Source, R, T>(load_i(codes + t * tile_stride), in, t, acc);
    codes += kLine;
    QUERN_UNROLL
    for (int r = 0; r < R; ++r) in[r] += Source<Dot>::kSteps * Dot::kInputBytes;
  }
  QUERN_UNROLL
  for (int r = 0; r < R; ++r) {
    QUERN_UNROLL
    for (int t = 0; t < T; ++t) Dot::flush(acc[r][t]);
  }
}

// Whether all blocks are groups of the weights, from the first column to the last: then what a block costs
// beside its steps, which of a small group is as much again, can do without all that parts of blocks need.
QUERN_INLINE bool are_whole_groups(const MicroArgs& a) {
  const int64_t group = a.weight->group;
  return a.weight->grouped && a.block == group && a.k_begin % group == 0 && a.k_end % group == 0;
}

// As add_block(), of sums without the offset.
template <class Dot, template <class> class Source, int R, int T>
QUERN_INLINE void add_group(const WeightView& weight, const std::byte* header, const BlockInfo* info,
                            const typename Dot::Acc (&sums)[R][T], float* acc) {
  const int64_t stride = weight.tile_stride;
  F32 scales[T];
  QUERN_UNROLL
  for (int t = 0; t < T; ++t) scales[t] = load_scales(weight, header + t * stride);
  if (weight.zero_points) {
    QUERN_UNROLL
    for (int t = 0; t < T; ++t) {
      const I32 zero_points = load_zero_points(weight, header + t * stride);
      QUERN_UNROLL
      for (int r = 0; r < R; ++r) {
        const I32 sum = add_i(Dot::total(sums[r][t]), mul_i(zero_points, set1_i(info[r].offset)));
        float* at = acc + (r * T + t) * kTile;
        store(at, fmadd(to_f32(sum), mul(scales[t], set1(info[r].scale)), load(at)));
      }
    }
    return;
  }
  QUERN_UNROLL
  for (int r = 0; r < R; ++r) {
    const I32 offset = shift_left<Source<Dot>::kMiddleBit>(set1_i(info[r].offset));
    const F32 scale = set1(info[r].scale);
    QUERN_UNROLL
    for (int t = 0; t < T; ++t) {
      const I32 sum = add_i(Dot::total(sums[r][t]), offset);
      float* at = acc + (r * T + t) * kTile;
      store(at, fmadd(to_f32(sum), mul(scales[t], scale), load(at)));
    }
  }
}

// integer_micro() where are_whole_groups(). kVectors: of a group; 0: as many as it has.
template <class Dot, template <class> class Source, int R, int T, int64_t kVectors>
QUERN_INLINE void whole_groups(const MicroArgs& a) {
  constexpr int kColumns = Source<Dot>::kSteps * Dot::kColumns;
  constexpr int64_t kChunk = chunk_of<Dot, Source>();
  const WeightView weight = *a.weight;
  const int64_t vectors = kVectors != 0 ? kVectors : weight.group / kColumns;
  const int64_t first = a.k_begin / weight.group, groups = a.k_end / weight.group - first;
  const BlockInfo* info = a.info + first * a.info_stride;
  const std::byte* header = a.tile + first * weight.group_stride;
  const int64_t to_codes = weight.tile_header + weight.group_header;
  const std::byte* next_tile = a.next_tile;
  float* sums = a.acc;
  const std::byte* in[R];
  QUERN_UNROLL
  for (int r = 0; r < R; ++r) in[r] = a.rows[r] + a.k_begin / Dot::kColumns * Dot::kInputBytes;
  for (int64_t g = 0; g < groups; ++g) {
    typename Dot::Acc acc[R][T];
    QUERN_UNROLL
    for (int r = 0; r < R; ++r) {
      QUERN_UNROLL
      for (int t = 0; t < T; ++t) acc[r][t] = Dot::start(zero_i());
    }
    const std::byte* codes = header + to_codes;
    for (int64_t done = 0; done < vectors; done += kChunk) {
      prefetch<R, T>(a, in, next_tile);
      const int64_t n = kVectors != 0 ? kVectors : min64(vectors - done, kChunk);
      multiply_vectors<Dot, Source, R, T>(codes, weight.tile_stride, n, in, acc);
    }
    add_group<Dot, Source, R, T>(weight, header, info, acc, sums);
    header += weight.group_stride;
    info += a.info_stride;
  }
}

template <class Dot, template <class> class Source, int R, int T>
QUERN_NOINLINE void integer_micro(const MicroArgs& a) {
  constexpr int kColumns = Source<Dot>::kSteps * Dot::kColumns;  // per 64 bytes
  constexpr int64_t kChunk = chunk_of<Dot, Source>();
  const WeightView& weight = *a.weight;
  if (are_whole_groups(a)) {
    if (weight.group == kChunk * kColumns) return whole_groups<Dot, Source, R, T, kChunk>(a);
    return whole_groups<Dot, Source, R, T, 0>(a);
  }
  const int64_t group = a.k_begin / weight.group;
  int64_t group_end = (group + 1) * weight.group;
  const int64_t first_block = a.k_begin / a.block;
  int64_t block_begin = first_block * a.block;
  const BlockInfo* info = a.info + first_block * a.info_stride;
  const std::byte* header = a.tile + group * weight.group_stride;
  const std::byte* next_tile = a.next_tile;
  const std::byte* in[R];
  QUERN_UNROLL
  for (int r = 0; r < R; ++r) in[r] = a.rows[r] + a.k_begin / Dot::kColumns * Dot::kInputBytes;

  for (int64_t k = a.k_begin; k < a.k_end;) {
    if (k == group_end) {
      header += weight.group_stride;
      group_end += weight.group;
    }
    const int64_t block_end = min64(block_begin + a.block, weight.cols);
    const int64_t end = min64(block_end, a.k_end);
    const std::byte* codes = header + weight.tile_header + weight.group_header +
                             (k - (group_end - weight.group)) / kColumns * kLine;
    typename Dot::Acc acc[R][T];
    QUERN_UNROLL
    for (int r = 0; r < R; ++r) {
      const I32 offset = constant_offset(weight, info[r].offset);
      QUERN_UNROLL
      for (int t = 0; t < T; ++t) {
        acc[r][t] = Dot::start(k == block_begin ? offset : load_i(a.carried + (r * T + t) * kTile));
      }
    }
    for (int64_t left = (end - k) / kColumns; left > 0; left -= kChunk) {
      prefetch<R, T>(a, in, next_tile);
      multiply_vectors<Dot, Source, R, T>(codes, weight.tile_stride, min64(left, kChunk), in, acc);
    }
    if (end == block_end) {
      add_block<Dot, R, T>(a, header, info, acc);
      info += a.info_stride;
      block_begin = block_end;
    } else {
      for (int r = 0; r < R; ++r) {
        for (int t = 0; t < T; ++t) store_i(a.carried + (r * T + t) * kTile, Dot::total(acc[r][t]));
      }
    }
    k = end;
  }
}

// Float weights: kColumns columns from each vector of kBytes.
struct WeightF32 {
  static constexpr int kColumns = 1;
  static constexpr int kBytes = 64;
  using Vector = F32;
  static QUERN_INLINE Vector load_vector(const std::byte* p) {
    return load(reinterpret_cast<const float*>(p));
  }
  template <int c>
  static QUERN_INLINE F32 column(Vector v) {
    return v;
  }
};
struct WeightF16 {
  static constexpr int kColumns = 1;
  static constexpr int kBytes = 32;
  using Vector = F32;
  static QUERN_INLINE Vector load_vector(const std::byte* p) { return load_f16(p); }
  template <int c>
  static QUERN_INLINE F32 column(Vector v) {
    return v;
  }
};
struct WeightBF16 {
  static constexpr int kColumns = 2;
  static constexpr int kBytes = 64;
  using Vector = I32;
  static QUERN_INLINE Vector load_vector(const std::byte* p) { return load_i(p); }
  template <int c>
  static QUERN_INLINE F32 column(Vector v) {
    return from_bits(c == 0 ? shift_left<16>(v) : and_i(v, set1_i(static_cast<int32_t>(0xFFFF0000U))));
  }
};

// The columns of one vector of tile t, for all rows; see the integer one about the order.
template <class Weight, int R, int T, int c = 0>
QUERN_INLINE void multiply_floats(typename Weight::Vector v, const float* const (&in)[R], int t,
                                  F32 (&acc)[R][T]) {
  F32 w = Weight::template column<c>(v);
  pin(w);  // or each multiplication would load it again
  QUERN_UNROLL
  for (int r = 0; r < R; ++r) {
    acc[r][t] = fmadd(w, set1(in[r][c]), acc[r][t]);
    pin(acc[r][t]);
  }
  if constexpr (c + 1 < Weight::kColumns) multiply_floats<Weight, R, T, c + 1>(v, in, t, acc);
}

template <int R, int T>
QUERN_INLINE void load_sums(const MicroArgs& a, F32 (&acc)[R][T]) {
  QUERN_UNROLL
  for (int r = 0; r < R; ++r) {
    QUERN_UNROLL
    for (int t = 0; t < T; ++t) acc[r][t] = load(a.acc + (r * T + t) * kTile);
  }
}

template <int R, int T>
QUERN_INLINE void store_sums(const MicroArgs& a, const F32 (&acc)[R][T]) {
  QUERN_UNROLL
  for (int r = 0; r < R; ++r) {
    QUERN_UNROLL
    for (int t = 0; t < T; ++t) store(a.acc + (r * T + t) * kTile, acc[r][t]);
  }
}

template <class Weight, int R, int T>
QUERN_NOINLINE void float_micro(const MicroArgs& a) {
  constexpr int64_t kChunk = kLine / 4;  // columns
  const std::byte* codes = a.tile + a.k_begin / Weight::kColumns * Weight::kBytes;
  const std::byte* next_tile = a.next_tile;
  const float* in[R];
  QUERN_UNROLL
  for (int r = 0; r < R; ++r) in[r] = reinterpret_cast<const float*>(a.rows[r]) + a.k_begin;
  F32 acc[R][T];
  load_sums<R, T>(a, acc);
  for (int64_t k = a.k_begin; k < a.k_end;) {
    prefetch<R, T>(a, in, next_tile);
    const int64_t end = min64(k + kChunk, a.k_end);
    for (; k < end; k += Weight::kColumns) {
      QUERN_UNROLL
      for (int t = 0; t < T; ++t) {
        multiply_floats<Weight, R, T>(Weight::load_vector(codes + t * a.weight->tile_stride), in, t, acc);
      }
      codes += Weight::kBytes;
      QUERN_UNROLL
      for (int r = 0; r < R; ++r) in[r] += Weight::kColumns;
    }
  }
  store_sums<R, T>(a, acc);
}

#if QUERN_HAS_DOT_BF16
// BF16 weights with BF16 inputs: pairs of columns, each pair's products added to the sum in one instruction.
template <int R, int T>
QUERN_NOINLINE void bf16_micro(const MicroArgs& a) {
  constexpr int64_t kChunk = kLine / 2;  // columns
  const std::byte* codes = a.tile + a.k_begin / 2 * kLine;
  const std::byte* next_tile = a.next_tile;
  const std::byte* in[R];
  QUERN_UNROLL
  for (int r = 0; r < R; ++r) in[r] = a.rows[r] + a.k_begin * 2;
  F32 acc[R][T];
  load_sums<R, T>(a, acc);
  for (int64_t k = a.k_begin; k < a.k_end;) {
    prefetch<R, T>(a, in, next_tile);
    const int64_t end = min64(k + kChunk, a.k_end);
    for (; k < end; k += 2) {
      QUERN_UNROLL
      for (int t = 0; t < T; ++t) {
        const I32 w = load_i(codes + t * a.weight->tile_stride);
        QUERN_UNROLL
        for (int r = 0; r < R; ++r) {
          acc[r][t] = dot_bf16(acc[r][t], w, broadcast4(in[r]));
          pin(acc[r][t]);
        }
      }
      codes += kLine;
      QUERN_UNROLL
      for (int r = 0; r < R; ++r) in[r] += 4;
    }
  }
  store_sums<R, T>(a, acc);
}
#endif

// ---- Families: the micro-kernels of one combination of weight and input. Tables, so that the loops around
// them are compiled once.

struct Family {
  int64_t input_column_bytes;
  int max_rows;
  // By rows - 1; nullptr where is_allowed() says no.
  Micro four[kMaxRows];
  Micro two[kMaxRows];
  Micro one[kMaxRows];
};

// As many rows as leave registers for what a step needs: of sixteen, a row's accumulator takes two or four.
constexpr int rows_that_fit(int accumulators) {
  return QUERN_ISA_LEVEL == 0 || QUERN_ISA_LEVEL >= 3 || accumulators == 1 ? kMaxRows : 3;
}

template <class Dot, template <class> class Source>
struct IntegerKernels {
  static constexpr int kRows = rows_that_fit(Dot::kAccumulators);
  static constexpr int64_t kInputColumnBytes = Dot::kInputBytes / Dot::kColumns;
  static constexpr int kAccumulators = Dot::kAccumulators;
  template <int R, int T>
  static constexpr Micro kMicro = integer_micro<Dot, Source, R, T>;
};

template <class Weight>
struct FloatKernels {
  static constexpr int kRows = kMaxRows;
  static constexpr int64_t kInputColumnBytes = 4;
  static constexpr int kAccumulators = 1;
  template <int R, int T>
  static constexpr Micro kMicro = float_micro<Weight, R, T>;
};

#if QUERN_HAS_DOT_BF16
struct BF16Kernels {
  static constexpr int kRows = kMaxRows;
  static constexpr int64_t kInputColumnBytes = 2;
  static constexpr int kAccumulators = 1;
  template <int R, int T>
  static constexpr Micro kMicro = bf16_micro<R, T>;
};
#endif

template <class Kernels, int R, int T>
constexpr Micro micro() {
  if constexpr (is_allowed(R, T, Kernels::kAccumulators)) {
    return Kernels::template kMicro<R, T>;
  } else {
    return nullptr;
  }
}

#define QUERN_FOUR(R) micro<Kernels, R, 4>()
#define QUERN_TWO(R) micro<Kernels, R, 2>()
#define QUERN_ONE(R) micro<Kernels, R, 1>()
template <class Kernels>
constexpr Family kFamily = {Kernels::kInputColumnBytes,
                            Kernels::kRows,
                            {QUERN_EACH_ROW_COUNT(QUERN_FOUR)},
                            {QUERN_EACH_ROW_COUNT(QUERN_TWO)},
                            {QUERN_EACH_ROW_COUNT(QUERN_ONE)}};

const Family* integer_family(const LinearTask& task) {
  const bool u8 = task.weight.kind == WeightKind::U8;
#if QUERN_HAS_DOT_U8S8
  if (task.input.kind == InputKind::S8) {
    return u8 ? &kFamily<IntegerKernels<DotU8S8, FromU8>> : &kFamily<IntegerKernels<DotU8S8, FromU4>>;
  }
  if (task.input.kind == InputKind::S8HiLo) {
    return u8 ? &kFamily<IntegerKernels<DotU8HiLo, FromU8>> : &kFamily<IntegerKernels<DotU8HiLo, FromU4>>;
  }
#elif QUERN_HAS_MADDUBS
  // Of four-bit codes alone.
  if (task.input.kind == InputKind::S8) return &kFamily<IntegerKernels<DotU4S8, FromU4>>;
#endif
  return u8 ? &kFamily<IntegerKernels<DotS16, FromU8>> : &kFamily<IntegerKernels<DotS16, FromU4>>;
}

const Family* family_of(const LinearTask& task) {
  switch (task.weight.kind) {
    case WeightKind::F32:
      return &kFamily<FloatKernels<WeightF32>>;
    case WeightKind::F16:
      return &kFamily<FloatKernels<WeightF16>>;
    case WeightKind::BF16:
#if QUERN_HAS_DOT_BF16
      if (task.input.kind == InputKind::BF16) return &kFamily<BF16Kernels>;
#endif
      return &kFamily<FloatKernels<WeightBF16>>;
    default:
      return integer_family(task);
  }
}

// ---- Epilogue.

QUERN_INLINE F32 load_lanes(const float* p, int n) {
  return n == kLanes ? load(p) : load_partial(p, n);
}

// Of one tile of one row (index i of the task's rows).
void finish(const LinearTask& task, int64_t tile, int64_t i, const float* acc, const float* up_acc) {
  F32 value = load(acc);
  const int64_t column = tile * kTile;
  const int n = static_cast<int>(min64(kTile, task.weight.rows - column));
  if (task.bias != nullptr) value = add(value, load_lanes(task.bias + column, n));
  if (task.activation != Unary::Identity) value = unary(task.activation, value);
  if (task.gated) {
    F32 up_value = load(up_acc);
    if (task.up_bias != nullptr) up_value = add(up_value, load_lanes(task.up_bias + column, n));
    value = mul(value, up_value);
  }
  if (task.row_scale != nullptr) value = mul(value, set1(task.row_scale[i]));
  const int64_t row = task.output_rows != nullptr ? task.output_rows[i] : i;
  if (task.residual != nullptr) {
    value = add(value, load_lanes(task.residual + row * task.residual_stride + column, n));
  }
  float* y = task.y + row * task.y_stride + column;
  if (n == kLanes) {
    store(y, value);
  } else {
    store_partial(y, value, n);
  }
}

// ---- Loops around the micro-kernels.

// A block of rows, cut into parts of a micro-kernel's rows that differ by at most one: 7 rows as 4 and 3, not
// as 6 and 1, so that no number of rows is much worse than its neighbours.
struct RowBlock {
  int64_t begin;  // of the task's rows
  int64_t count;
  int64_t parts;
  const std::byte* codes[kRowBlock];
  const BlockInfo* info;  // [block of columns - info_block][row], the first row's
  int64_t info_stride;
  int64_t info_block;

  int64_t part_begin(int64_t part) const { return count * part / parts; }
  int most_rows() const { return static_cast<int>((count + parts - 1) / parts); }
};

struct Columns {
  int64_t begin, end;
};

// Micro-kernels by rows - 1 and how many tiles they take: as many as are allowed and left.
struct Choice {
  const Micro* micros;
  int64_t tiles;
};

Choice choose(const Family& family, int rows, int64_t tiles_left) {
  if (tiles_left >= 4 && family.four[rows - 1] != nullptr) return {family.four, 4};
  if (tiles_left >= 2 && family.two[rows - 1] != nullptr) return {family.two, 2};
  return {family.one, 1};
}

// Some columns of a few tiles, for all rows of a block. acc, carried: [row][tile][kTile].
void multiply_block(const Family& family, const LinearTask& task, const WeightView& weight, int64_t tile,
                    const Choice& choice, const Columns& columns, const RowBlock& block, float* acc,
                    int32_t* carried) {
  MicroArgs a{};
  a.weight = &weight;
  a.info_stride = block.info_stride;
  a.block = task.input.block;
  a.tile = weight.data + tile * weight.tile_stride;
  a.k_begin = columns.begin;
  a.k_end = columns.end;
  // One row's kernel leaves prefetching to the processor, which does it well for its streams (prefetching by
  // hand was measured: slower). From two rows on the processor reads too little ahead of the slower loop.
  // With several parts the tiles are read from memory by the first one alone: each prefetches a share of the
  // next ones.
  const int64_t input_lines = (columns.end - columns.begin) * family.input_column_bytes / kLine;
  const int64_t begin = weight.tile_stride * columns.begin / weight.cols;  // of the columns, roughly
  const int64_t lines = (weight.tile_stride * columns.end / weight.cols - begin + kLine - 1) / kLine;
  const int64_t shares = block.parts * (input_lines > 0 ? input_lines : 1);
  if (block.count > 1) a.next_lines = (lines + shares - 1) / shares;
  a.next_tile = a.tile + begin + (block.parts == 1 ? kAhead : choice.tiles * weight.tile_stride);
  for (int64_t part = 0; part < block.parts; ++part) {
    const int64_t first = block.part_begin(part);
    const int row_count = static_cast<int>(block.part_begin(part + 1) - first);
    a.rows = block.codes + first;
    a.info = block.info + first - block.info_block * block.info_stride;
    a.acc = acc + first * choice.tiles * kTile;
    a.carried = carried + first * choice.tiles * kTile;
    const bool last = part + 1 == block.parts;
    a.next_rows = last || task.input_rows != nullptr ? 0 : row_count * task.input.row_stride;
    choice.micros[row_count - 1](a);
    a.next_tile += a.next_lines * kLine * input_lines;
  }
}

// Scales and offsets of the block's rows for some columns. Rows in a list are copied side by side.
void find_info(const LinearTask& task, const Columns& columns, RowBlock& block, BlockInfo* copy) {
  const InputView& input = task.input;
  if (task.input_rows == nullptr || input.block == 0) {
    block.info = input.info + block.begin;
    block.info_stride = input.rows;
    block.info_block = 0;
    return;
  }
  block.info = copy;
  block.info_stride = block.count;
  block.info_block = columns.begin / input.block;
  for (int64_t b = block.info_block; b * input.block < columns.end; ++b) {
    for (int64_t r = 0; r < block.count; ++r)
      *copy++ = input.info[b * input.rows + task.input_rows[block.begin + r]];
  }
}

// Columns at a time: all for one part, else as many as the caches hold inputs; with a list of rows, no more
// than there is room to copy the scales of.
int64_t columns_at_once(const Family& family, const LinearTask& task, const RowBlock& block) {
  int64_t columns = task.weight.cols;
  if (block.parts > 1) columns = min64(columns, kBlockInputBytes / family.input_column_bytes);
  if (task.input_rows == nullptr || task.input.block == 0) return columns;
  const int64_t blocks = kInfoBytes / static_cast<int64_t>(sizeof(BlockInfo)) / block.count - 1;
  return min64(columns, blocks * task.input.block);
}

// A few tiles for the rows of a block.
void tile_group(const Family& family, const LinearTask& task, int64_t tile, int64_t tiles, RowBlock& block,
                std::byte* memory) {
  const int64_t all_columns = task.weight.cols;
  const int64_t step = columns_at_once(family, task, block);
  const int weights = task.gated ? 2 : 1;
  // For each Choice's tiles, one after another: [row][tile][kTile]; the second for `up`.
  float* acc[2];
  int32_t* carried[2];
  for (int i = 0; i < 2; ++i) {
    acc[i] = reinterpret_cast<float*>(memory) + i * kAccFloats;
    carried[i] = reinterpret_cast<int32_t*>(memory) + (2 + i) * kAccFloats;
  }
  for (int i = 0; i < weights; ++i) {
    std::memset(acc[i], 0, static_cast<size_t>(tiles * block.count * kTile) * sizeof(float));
  }
  for (int64_t k = 0; k < all_columns; k += step) {
    const Columns columns = {k, min64(k + step, all_columns)};
    find_info(task, columns, block, reinterpret_cast<BlockInfo*>(memory + 4 * kAccFloats * 4));
    for (int i = 0; i < weights; ++i) {
      for (int64_t t = 0; t < tiles;) {
        const Choice choice = choose(family, block.most_rows(), tiles - t);
        const int64_t at = t * block.count * kTile;
        multiply_block(family, task, i == 0 ? task.weight : task.up, tile + t, choice, columns, block,
                       acc[i] + at, carried[i] + at);
        t += choice.tiles;
      }
    }
  }
  for (int64_t t = 0; t < tiles;) {
    const Choice choice = choose(family, block.most_rows(), tiles - t);
    for (int64_t r = 0; r < block.count; ++r) {
      for (int64_t i = 0; i < choice.tiles; ++i) {
        const int64_t at = (t * block.count + r * choice.tiles + i) * kTile;
        finish(task, tile + t + i, block.begin + r, acc[0] + at, acc[weights - 1] + at);
      }
    }
    t += choice.tiles;
  }
}

void tiles(const LinearTask& task, const TileRange& range, std::byte* scratch) {
  const Family& family = *family_of(task);
  const int64_t rows = range.row_end - range.row_begin;
  const int64_t blocks = (rows + kRowBlock - 1) / kRowBlock;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t first = rows * b / blocks;
    const int64_t count = rows * (b + 1) / blocks - first;
    RowBlock block;
    block.begin = range.row_begin + first;
    block.count = count;
    block.parts = (count + family.max_rows - 1) / family.max_rows;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t row = task.input_rows != nullptr ? task.input_rows[block.begin + r] : block.begin + r;
      block.codes[r] = task.input.codes + row * task.input.row_stride;
    }
    for (int64_t tile = range.tile_begin; tile < range.tile_end; tile += kTileGroup) {
      tile_group(family, task, tile, min64(kTileGroup, range.tile_end - tile), block, scratch);
    }
  }
}

// ---- Inputs.

// Sixteen values from column k on, zeros past `cols`.
QUERN_INLINE F32 load_columns(const float* x, int64_t k, int64_t cols) {
  if (k + kLanes <= cols) return load(x + k);
  if (k >= cols) return zero_f();
  return load_partial(x + k, static_cast<int>(cols - k));
}

template <InputKind kKind>
QUERN_INLINE void store_codes(std::byte* row, int64_t k, I32 codes) {
  if constexpr (kKind == InputKind::S16Pairs) {
    store_pairs16(row + k * 2, codes);
  } else if constexpr (kKind == InputKind::S8) {
    store_low8(row + k, codes);
  } else {
    const I32 hi = shift_right<8>(add_i(codes, set1_i(128)));
    store_low8_interleaved(row + k * 2, hi, sub_i(codes, shift_left<8>(hi)));
  }
}

// Columns begin .. end of a row, a block; returns minus the sum of the codes and sets `scale`.
template <InputKind kKind>
QUERN_INLINE int32_t encode_block(const EncodeTask& task, const float* x, std::byte* row, int64_t begin,
                                  int64_t end, float& scale) {
  // Largest magnitude, by its bits, which order like the values, infinity and NaN above all.
  I32 largest = zero_i();
  for (int64_t k = begin; k < end; k += kLanes) {
    largest = max_i(largest, bits(abs(load_columns(x, k, task.cols))));
  }
  const int32_t largest_bits = reduce_max(largest);
  float magnitude;
  std::memcpy(&magnitude, &largest_bits, 4);
  // Below this the reciprocal overflows; the block is as good as zero.
  constexpr float kSmallest = 1e-30F;
  float inverse = 0;
  scale = 0;
  if (largest_bits >= 0x7F800000) {
    const int32_t nan = 0x7FC00000;
    std::memcpy(&scale, &nan, 4);
  } else if (magnitude >= kSmallest) {
    scale = magnitude / task.largest_code;
    inverse = task.largest_code / magnitude;
  }
  const bool usable = inverse != 0;
  I32 sum = zero_i();
  for (int64_t k = begin; k < end; k += kLanes) {
    I32 codes = zero_i();
    if (usable) codes = round_i32(mul(load_columns(x, k, task.cols), set1(inverse)));
    store_codes<kKind>(row, k, codes);
    sum = add_i(sum, codes);
  }
  return -reduce_add(sum);
}

template <InputKind kKind>
void encode_integers(const EncodeTask& task, int64_t first, int64_t count) {
  for (int64_t r = first; r < first + count; ++r) {
    BlockInfo* info = task.info + r;
    for (int64_t begin = 0; begin < task.padded_cols; begin += task.block) {
      const int64_t end = min64(begin + task.block, task.padded_cols);
      info->offset = encode_block<kKind>(task, task.x + r * task.x_stride, task.codes + r * task.row_stride,
                                         begin, end, info->scale);
      info += task.rows;
    }
  }
}

void encode_floats(const EncodeTask& task, int64_t first, int64_t count) {
  for (int64_t r = first; r < first + count; ++r) {
    auto* out = reinterpret_cast<float*>(task.codes + r * task.row_stride);
    std::memcpy(out, task.x + r * task.x_stride, static_cast<size_t>(task.cols) * sizeof(float));
    for (int64_t k = task.cols; k < task.padded_cols; ++k) out[k] = 0;
  }
}

void encode_bf16(const EncodeTask& task, int64_t first, int64_t count) {
  for (int64_t r = first; r < first + count; ++r) {
    std::byte* out = task.codes + r * task.row_stride;
    int64_t k = 0;
    for (; k + kLanes <= task.padded_cols; k += kLanes) {
      store_bf16(out + k * 2, load_columns(task.x + r * task.x_stride, k, task.cols));
    }
    if (k < task.padded_cols) {
      alignas(64) uint16_t tail[kLanes];
      store_bf16(tail, load_columns(task.x + r * task.x_stride, k, task.cols));
      std::memcpy(out + k * 2, tail, static_cast<size_t>(task.padded_cols - k) * 2);
    }
  }
}

void encode(const EncodeTask& task, int64_t first, int64_t count) {
  switch (task.kind) {
    case InputKind::F32:
      return encode_floats(task, first, count);
    case InputKind::BF16:
      return encode_bf16(task, first, count);
    case InputKind::S16Pairs:
      return encode_integers<InputKind::S16Pairs>(task, first, count);
    case InputKind::S8:
      return encode_integers<InputKind::S8>(task, first, count);
    case InputKind::S8HiLo:
      return encode_integers<InputKind::S8HiLo>(task, first, count);
  }
}

}  // namespace

extern const LinearKernels linear_kernels_of;
const LinearKernels linear_kernels_of = {tiles, encode};

}  // namespace quern::cpu::QUERN_ISA
