// Products with packed weights, compiled once per instruction set (isa.h). The streams are described in
// ir/packed_tensor.h, the inputs in activations.h.
//
// A micro-kernel computes R rows times T tiles with R * T vector accumulators. Few rows (up to kMaxRows) run
// it straight over the weights' stream, unpacking in registers. More rows unpack a panel of columns into
// scratch memory once and run it for all of them, with accumulators that wait in memory between panels:
//
//   for each block of rows, small enough that its inputs' panel stays in the second-level cache
//     for each few tiles
//       for each panel of columns: unpack, small enough for the first-level cache
//         for each kMaxRows rows: micro-kernel
//       epilogue
//
// Neither way changes a row's result: integer sums are exact, and floats add up in ascending order of columns
// in an accumulator of their own, whether it waits in a register or in memory.
//
// The file is long because the micro-kernels, the loops around them and the choice of both belong together.
#include "runtime/cpu/linear_kernels.h"

#include "runtime/cpu/unary_inline.h"

namespace quern::cpu::QUERN_ISA {
namespace {

constexpr int64_t kTile = 16;

// Registers: 32 of a whole vector at AVX-512, 16 of half a vector at AVX2, 16 of a quarter, at worst, at
// level 0.
#if QUERN_ISA_LEVEL >= 3
constexpr int kMaxRows = 8;
constexpr int kWideTiles = 4;  // of one-row kernels
constexpr int kPanelTiles = 2;
#define QUERN_EACH_ROW_COUNT(X) X(1), X(2), X(3), X(4), X(5), X(6), X(7), X(8)
#elif QUERN_ISA_LEVEL >= 1
constexpr int kMaxRows = 6;
constexpr int kWideTiles = 4;
constexpr int kPanelTiles = 1;
#define QUERN_EACH_ROW_COUNT(X) X(1), X(2), X(3), X(4), X(5), X(6)
#else
constexpr int kMaxRows = 2;
constexpr int kWideTiles = 1;
constexpr int kPanelTiles = 1;
#define QUERN_EACH_ROW_COUNT(X) X(1), X(2)
#endif

// Scratch: accumulators of a block of rows times a few tiles and as many carried integer sums, both twice for
// gated products, and the panel.
constexpr int64_t kRowBlock = 96;
constexpr int64_t kTileGroup = 8;
constexpr int64_t kAccFloats = kRowBlock * kTileGroup * kTile;
constexpr int64_t kPanelBytes = 16 * 1024;
static_assert(kRowBlock % kMaxRows == 0);
static_assert(kAccFloats * 4 * 4 + kPanelBytes <= 256 * 1024);

QUERN_INLINE int64_t min64(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// ---- Dot products of integer codes: a step is kColumns columns of 16 outputs (one 64-byte vector of
// weights) with the kInputBytes of the inputs that belong to it.

struct DotS16 {
  static constexpr int kColumns = 2;
  static constexpr int kInputBytes = 4;
  static constexpr int kFlushSteps = 0;  // never
  using Input = I32;
  struct Acc {
    I32 sum;
  };
  static QUERN_INLINE Acc start(I32 carried) { return {carried}; }
  static QUERN_INLINE Input input(const std::byte* p) { return broadcast4(p); }
  static QUERN_INLINE void step(Acc& acc, I32 w, Input in) { acc.sum = dot_i16(acc.sum, w, in); }
  static QUERN_INLINE void flush(Acc&) {}
  static QUERN_INLINE I32 total(const Acc& acc) { return acc.sum; }
};

#if QUERN_HAS_DOT_U8S8
struct DotU8S8 {
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
  static QUERN_INLINE void flush(Acc&) {}
  static QUERN_INLINE I32 total(const Acc& acc) { return acc.sum; }
};

// 16-bit inputs as 256 * hi + lo.
struct DotU8HiLo {
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
  static QUERN_INLINE void flush(Acc&) {}
  static QUERN_INLINE I32 total(const Acc& acc) { return add_i(shift_left<8>(acc.hi), acc.lo); }
};
#endif

#if QUERN_HAS_MADDUBS
// Four-bit codes only: a step adds at most 2 * 15 * 127 = 3810 to an int16, so that eight steps cannot
// overflow it.
struct DotU4S8 {
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
  static QUERN_INLINE void flush(Acc& acc) {
    acc.sum = dot_i16(acc.sum, acc.sum16, set1_i(0x00010001));
    acc.sum16 = zero_i();
  }
  static QUERN_INLINE I32 total(const Acc& acc) { return acc.sum; }
};
#endif

// ---- Where weight vectors come from: kSteps of a Dot from each 64 bytes.

// A panel holds them ready.
template <class Dot>
struct FromPanel {
  static constexpr int kSteps = 1;
  static QUERN_INLINE void expand(const std::byte* p, I32* w) { w[0] = load_i(p); }
};

template <class Dot>
struct FromU8 {
  static constexpr int kSteps = 4 / Dot::kColumns;
  static QUERN_INLINE void expand(const std::byte* p, I32* w) {
    const I32 v = load_i(p);
    if constexpr (Dot::kColumns == 4) {
      w[0] = v;
    } else {  // the even bytes and the odd bytes, as int16
      w[0] = and_i(v, set1_i(0x00FF00FF));
      w[1] = shift_right_u16<8>(v);
    }
  }
};

template <class Dot>
struct FromU4 {
  static constexpr int kSteps = 8 / Dot::kColumns;
  static QUERN_INLINE void expand(const std::byte* p, I32* w) {
    const I32 v = load_i(p);
    if constexpr (Dot::kColumns == 4) {
      w[0] = and_i(v, set1_i(0x0F0F0F0F));
      w[1] = and_i(shift_right_u16<4>(v), set1_i(0x0F0F0F0F));
    } else {
      const I32 mask = set1_i(0x000F000F);
      w[0] = and_i(v, mask);
      w[1] = and_i(shift_right_u16<8>(v), mask);
      w[2] = and_i(shift_right_u16<4>(v), mask);
      w[3] = shift_right_u16<12>(v);
    }
  }
};

// ---- Micro-kernels.

// Up to kMaxRows rows of a task's input.
struct Rows {
  const std::byte* codes[kMaxRows];
  const float* scales[kMaxRows];
  const int32_t* sums[kMaxRows];
};

struct MicroArgs {
  const WeightView* weight;
  const InputView* input;
  const Rows* rows;
  const std::byte* tile;      // of the weight: the first one
  const std::byte* panel;     // FromPanel: columns k_begin .. of the first tile
  int64_t panel_tile_stride;  // bytes
  int64_t k_begin, k_end;     // columns; k_begin of a whole step, k_end likewise or the end
  float* acc;                 // [R][.], added to
  int32_t* carried;           // like acc: sums of a block that began before k_begin or ends after k_end
  int64_t acc_row_stride;     // floats
  int64_t acc_tile_stride;    // floats
};

using Micro = void (*)(const MicroArgs&);

QUERN_INLINE F32 load_scales(const WeightView& weight, const std::byte* header) {
  return weight.half_scales ? load_f16(header) : load(reinterpret_cast<const float*>(header));
}

QUERN_INLINE I32 load_zero_points(const WeightView& weight, const std::byte* header) {
  if (!weight.grouped) return load_i(header + 4 * kTile);
  return load_u8(header + (weight.half_scales ? 2 : 4) * kTile);
}

// acc += to_f32(sum - zero_point * sum_of_inputs) * (weight scale * input scale), of one block.
template <class Dot, int R, int T>
QUERN_INLINE void add_block(const MicroArgs& a, const std::byte* header, int64_t block,
                            const typename Dot::Acc (&sums)[R][T]) {
  const WeightView& weight = *a.weight;
  QUERN_UNROLL
  for (int t = 0; t < T; ++t) {
    const std::byte* tile_header = header + t * weight.tile_stride;
    const F32 scales = load_scales(weight, tile_header);
    I32 zeros = set1_i(weight.kind == WeightKind::U8 ? 128 : 8);
    if (weight.zero_points) zeros = load_zero_points(weight, tile_header);
    QUERN_UNROLL
    for (int r = 0; r < R; ++r) {
      float* acc = a.acc + r * a.acc_row_stride + t * a.acc_tile_stride;
      const I32 offset = mul_i(zeros, set1_i(a.rows->sums[r][block]));
      const F32 value = to_f32(sub_i(Dot::total(sums[r][t]), offset));
      store(acc, fmadd(value, mul(scales, set1(a.rows->scales[r][block])), load(acc)));
    }
  }
}

template <class Dot, template <class> class Source, int R, int T>
QUERN_NOINLINE void integer_micro(const MicroArgs& a) {
  constexpr bool kPanel = __is_same(Source<Dot>, FromPanel<Dot>);
  constexpr int kSteps = Source<Dot>::kSteps;
  constexpr int kColumns = kSteps * Dot::kColumns;  // per 64 bytes
  constexpr int64_t kChunk = Dot::kFlushSteps == 0 ? INT64_MAX : Dot::kFlushSteps / kSteps;
  const WeightView& weight = *a.weight;
  const int64_t block_columns = a.input->block;
  const int64_t code_stride = kPanel ? a.panel_tile_stride : weight.tile_stride;
  const int64_t group = a.k_begin / weight.group;
  int64_t group_end = (group + 1) * weight.group;
  int64_t block = a.k_begin / block_columns;
  const std::byte* header = a.tile + group * weight.group_stride;

  for (int64_t k = a.k_begin; k < a.k_end;) {
    if (k == group_end) {
      header += weight.group_stride;
      group_end += weight.group;
    }
    const int64_t block_begin = block * block_columns;
    const int64_t block_end = min64(block_begin + block_columns, weight.cols);
    const int64_t end = min64(block_end, a.k_end);
    const std::byte* codes;
    if constexpr (kPanel) {
      codes = a.panel + (k - a.k_begin) / kColumns * 64;
    } else {
      const int64_t group_begin = group_end - weight.group;
      codes = header + weight.tile_header + weight.group_header + (k - group_begin) / kColumns * 64;
    }
    const std::byte* in[R];
    QUERN_UNROLL
    for (int r = 0; r < R; ++r) in[r] = a.rows->codes[r] + k / Dot::kColumns * Dot::kInputBytes;

    typename Dot::Acc acc[R][T];
    QUERN_UNROLL
    for (int r = 0; r < R; ++r) {
      QUERN_UNROLL
      for (int t = 0; t < T; ++t) {
        I32 start = zero_i();
        if (k != block_begin) start = load_i(a.carried + r * a.acc_row_stride + t * a.acc_tile_stride);
        acc[r][t] = Dot::start(start);
      }
    }
    for (int64_t left = (end - k) / kColumns; left > 0;) {
      const int64_t n = min64(left, kChunk);
      for (int64_t i = 0; i < n; ++i) {
        I32 w[T][kSteps];
        QUERN_UNROLL
        for (int t = 0; t < T; ++t) Source<Dot>::expand(codes + t * code_stride, w[t]);
        codes += 64;
        QUERN_UNROLL
        for (int s = 0; s < kSteps; ++s) {
          QUERN_UNROLL
          for (int r = 0; r < R; ++r) {
            const typename Dot::Input input = Dot::input(in[r] + s * Dot::kInputBytes);
            QUERN_UNROLL
            for (int t = 0; t < T; ++t) Dot::step(acc[r][t], w[t][s], input);
          }
        }
        QUERN_UNROLL
        for (int r = 0; r < R; ++r) in[r] += kSteps * Dot::kInputBytes;
      }
      left -= n;
      QUERN_UNROLL
      for (int r = 0; r < R; ++r) {
        QUERN_UNROLL
        for (int t = 0; t < T; ++t) Dot::flush(acc[r][t]);
      }
    }
    if (end == block_end) {
      add_block<Dot, R, T>(a, header, block, acc);
      ++block;
    } else {
      for (int r = 0; r < R; ++r) {
        for (int t = 0; t < T; ++t) {
          store_i(a.carried + r * a.acc_row_stride + t * a.acc_tile_stride, Dot::total(acc[r][t]));
        }
      }
    }
    k = end;
  }
}

// Float weights: kColumns columns from each vector of kBytes, as kColumns vectors of floats.
struct WeightF32 {
  static constexpr int kColumns = 1;
  static constexpr int kBytes = 64;
  static QUERN_INLINE void expand(const std::byte* p, F32* w) {
    w[0] = load(reinterpret_cast<const float*>(p));
  }
};
struct WeightF16 {
  static constexpr int kColumns = 1;
  static constexpr int kBytes = 32;
  static QUERN_INLINE void expand(const std::byte* p, F32* w) { w[0] = load_f16(p); }
};
struct WeightBF16 {
  static constexpr int kColumns = 2;
  static constexpr int kBytes = 64;
  static QUERN_INLINE void expand(const std::byte* p, F32* w) {
    const I32 v = load_i(p);
    w[0] = from_bits(shift_left<16>(v));
    w[1] = from_bits(and_i(v, set1_i(static_cast<int32_t>(0xFFFF0000U))));
  }
};

// From the stream (panel == nullptr) or from a panel of WeightF32.
template <class Weight, int R, int T>
QUERN_NOINLINE void float_micro(const MicroArgs& a) {
  const std::byte* codes =
      a.panel != nullptr ? a.panel : a.tile + a.k_begin / Weight::kColumns * Weight::kBytes;
  const int64_t code_stride = a.panel != nullptr ? a.panel_tile_stride : a.weight->tile_stride;
  const float* in[R];
  F32 acc[R][T];
  QUERN_UNROLL
  for (int r = 0; r < R; ++r) {
    in[r] = reinterpret_cast<const float*>(a.rows->codes[r]) + a.k_begin;
    QUERN_UNROLL
    for (int t = 0; t < T; ++t) acc[r][t] = load(a.acc + r * a.acc_row_stride + t * a.acc_tile_stride);
  }
  for (int64_t k = a.k_begin; k < a.k_end; k += Weight::kColumns) {
    F32 w[T][Weight::kColumns];
    QUERN_UNROLL
    for (int t = 0; t < T; ++t) Weight::expand(codes + t * code_stride, w[t]);
    codes += Weight::kBytes;
    QUERN_UNROLL
    for (int c = 0; c < Weight::kColumns; ++c) {
      QUERN_UNROLL
      for (int r = 0; r < R; ++r) {
        const F32 x = set1(in[r][c]);
        QUERN_UNROLL
        for (int t = 0; t < T; ++t) acc[r][t] = fmadd(w[t][c], x, acc[r][t]);
      }
    }
    QUERN_UNROLL
    for (int r = 0; r < R; ++r) in[r] += Weight::kColumns;
  }
  QUERN_UNROLL
  for (int r = 0; r < R; ++r) {
    QUERN_UNROLL
    for (int t = 0; t < T; ++t) store(a.acc + r * a.acc_row_stride + t * a.acc_tile_stride, acc[r][t]);
  }
}

#if QUERN_HAS_DOT_BF16
// BF16 weights with BF16 inputs: pairs of columns, each pair's products added to the sum in one instruction.
template <int R, int T>
QUERN_NOINLINE void bf16_micro(const MicroArgs& a) {
  const std::byte* codes = a.tile + a.k_begin / 2 * 64;
  const std::byte* in[R];
  F32 acc[R][T];
  QUERN_UNROLL
  for (int r = 0; r < R; ++r) {
    in[r] = a.rows->codes[r] + a.k_begin * 2;
    QUERN_UNROLL
    for (int t = 0; t < T; ++t) acc[r][t] = load(a.acc + r * a.acc_row_stride + t * a.acc_tile_stride);
  }
  for (int64_t k = a.k_begin; k < a.k_end; k += 2) {
    I32 w[T];
    QUERN_UNROLL
    for (int t = 0; t < T; ++t) w[t] = load_i(codes + t * a.weight->tile_stride);
    codes += 64;
    QUERN_UNROLL
    for (int r = 0; r < R; ++r) {
      const I32 x = broadcast4(in[r]);
      in[r] += 4;
      QUERN_UNROLL
      for (int t = 0; t < T; ++t) acc[r][t] = dot_bf16(acc[r][t], w[t], x);
    }
  }
  QUERN_UNROLL
  for (int r = 0; r < R; ++r) {
    QUERN_UNROLL
    for (int t = 0; t < T; ++t) store(a.acc + r * a.acc_row_stride + t * a.acc_tile_stride, acc[r][t]);
  }
}
#endif

// ---- Families: the micro-kernels of one combination of weight and input, and how its panel is unpacked.
// Tables, so that the loops around the kernels are compiled once.

struct Family {
  int64_t panel_column_bytes;  // of a tile
  // Columns k_begin .. k_end of a tile, unpacked; nullptr where the kernels read the stream itself.
  void (*unpack)(const WeightView& weight, const std::byte* tile, int64_t k_begin, int64_t k_end,
                 std::byte* out);
  // By rows - 1. `wide` takes tiles_at_once(rows) tiles of the stream, `narrow` one. `panel` takes
  // kPanelTiles tiles from the panel (or the stream), `panel_narrow` one.
  Micro wide[kMaxRows];
  Micro narrow[kMaxRows];
  Micro panel[kMaxRows];
  Micro panel_narrow[kMaxRows];
};

// Several tiles for few rows, where one tile's accumulators would wait for one another.
constexpr int tiles_at_once(int rows) {
  if (rows == 1) return kWideTiles;
  return rows == 2 && kWideTiles > 1 ? 2 : kPanelTiles;
}

template <class Dot, template <class> class Source>
struct IntegerFamily {
  // Whether the stream itself is what the dot product reads.
  static constexpr bool kReadsStream = Source<Dot>::kSteps * Dot::kColumns == 4;

  static void unpack(const WeightView& weight, const std::byte* tile, int64_t k_begin, int64_t k_end,
                     std::byte* out) {
    constexpr int kSteps = Source<Dot>::kSteps;
    constexpr int kColumns = kSteps * Dot::kColumns;
    for (int64_t k = k_begin; k < k_end;) {
      const int64_t group = k / weight.group;
      const int64_t end = min64((group + 1) * weight.group, k_end);
      const std::byte* codes = tile + weight.tile_header + group * weight.group_stride + weight.group_header +
                               (k - group * weight.group) / kColumns * 64;
      for (; k < end; k += kColumns) {
        I32 w[kSteps];
        Source<Dot>::expand(codes, w);
        codes += 64;
        QUERN_UNROLL
        for (int s = 0; s < kSteps; ++s) store_i(out + s * 64, w[s]);
        out += kSteps * 64;
      }
    }
  }

  template <int R, int T>
  static constexpr Micro panel() {
    if constexpr (kReadsStream) {
      return integer_micro<Dot, Source, R, T>;
    } else {
      return integer_micro<Dot, FromPanel, R, T>;
    }
  }
#define QUERN_WIDE(R) integer_micro<Dot, Source, R, tiles_at_once(R)>
#define QUERN_NARROW(R) integer_micro<Dot, Source, R, 1>
#define QUERN_PANEL(R) panel<R, kPanelTiles>()
#define QUERN_PANEL_NARROW(R) panel<R, 1>()
  static constexpr Family kTable = {64 / Dot::kColumns,
                                    kReadsStream ? nullptr : unpack,
                                    {QUERN_EACH_ROW_COUNT(QUERN_WIDE)},
                                    {QUERN_EACH_ROW_COUNT(QUERN_NARROW)},
                                    {QUERN_EACH_ROW_COUNT(QUERN_PANEL)},
                                    {QUERN_EACH_ROW_COUNT(QUERN_PANEL_NARROW)}};
#undef QUERN_WIDE
#undef QUERN_NARROW
#undef QUERN_PANEL
#undef QUERN_PANEL_NARROW
};

template <class Weight>
struct FloatFamily {
  static constexpr bool kReadsStream = __is_same(Weight, WeightF32);

  static void unpack(const WeightView&, const std::byte* tile, int64_t k_begin, int64_t k_end,
                     std::byte* out) {
    const std::byte* codes = tile + k_begin / Weight::kColumns * Weight::kBytes;
    for (int64_t k = k_begin; k < k_end; k += Weight::kColumns) {
      F32 w[Weight::kColumns];
      Weight::expand(codes, w);
      codes += Weight::kBytes;
      QUERN_UNROLL
      for (int c = 0; c < Weight::kColumns; ++c) store(reinterpret_cast<float*>(out + c * 64), w[c]);
      out += Weight::kColumns * 64;
    }
  }

#define QUERN_WIDE(R) float_micro<Weight, R, tiles_at_once(R)>
#define QUERN_NARROW(R) float_micro<Weight, R, 1>
#define QUERN_PANEL(R) float_micro<WeightF32, R, kPanelTiles>
#define QUERN_PANEL_NARROW(R) float_micro<WeightF32, R, 1>
  static constexpr Family kTable = {64,
                                    kReadsStream ? nullptr : unpack,
                                    {QUERN_EACH_ROW_COUNT(QUERN_WIDE)},
                                    {QUERN_EACH_ROW_COUNT(QUERN_NARROW)},
                                    {QUERN_EACH_ROW_COUNT(QUERN_PANEL)},
                                    {QUERN_EACH_ROW_COUNT(QUERN_PANEL_NARROW)}};
#undef QUERN_WIDE
#undef QUERN_NARROW
#undef QUERN_PANEL
#undef QUERN_PANEL_NARROW
};

#if QUERN_HAS_DOT_BF16
struct BF16Family {
#define QUERN_WIDE(R) bf16_micro<R, tiles_at_once(R)>
#define QUERN_NARROW(R) bf16_micro<R, 1>
#define QUERN_PANEL(R) bf16_micro<R, kPanelTiles>
  static constexpr Family kTable = {32,
                                    nullptr,
                                    {QUERN_EACH_ROW_COUNT(QUERN_WIDE)},
                                    {QUERN_EACH_ROW_COUNT(QUERN_NARROW)},
                                    {QUERN_EACH_ROW_COUNT(QUERN_PANEL)},
                                    {QUERN_EACH_ROW_COUNT(QUERN_NARROW)}};
#undef QUERN_WIDE
#undef QUERN_NARROW
#undef QUERN_PANEL
};
#endif

const Family* integer_family(const LinearTask& task) {
  const bool u8 = task.weight.kind == WeightKind::U8;
  switch (task.input.kind) {
#if QUERN_HAS_DOT_U8S8
    case InputKind::S8:
      return u8 ? &IntegerFamily<DotU8S8, FromU8>::kTable : &IntegerFamily<DotU8S8, FromU4>::kTable;
    case InputKind::S8HiLo:
      return u8 ? &IntegerFamily<DotU8HiLo, FromU8>::kTable : &IntegerFamily<DotU8HiLo, FromU4>::kTable;
#elif QUERN_HAS_MADDUBS
    case InputKind::S8:  // of four-bit codes alone
      return &IntegerFamily<DotU4S8, FromU4>::kTable;
#endif
    default:
      return u8 ? &IntegerFamily<DotS16, FromU8>::kTable : &IntegerFamily<DotS16, FromU4>::kTable;
  }
}

const Family* family_of(const LinearTask& task) {
  switch (task.weight.kind) {
    case WeightKind::F32:
      return &FloatFamily<WeightF32>::kTable;
    case WeightKind::F16:
      return &FloatFamily<WeightF16>::kTable;
    case WeightKind::BF16:
#if QUERN_HAS_DOT_BF16
      if (task.input.kind == InputKind::BF16) return &BF16Family::kTable;
#endif
      return &FloatFamily<WeightBF16>::kTable;
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

QUERN_INLINE void gather_rows(const LinearTask& task, int64_t first, int count, Rows& out) {
  for (int r = 0; r < count; ++r) {
    const int64_t row = task.input_rows != nullptr ? task.input_rows[first + r] : first + r;
    out.codes[r] = task.input.codes + row * task.input.row_stride;
    out.scales[r] = task.input.scales + row * task.input.blocks;
    out.sums[r] = task.input.sums + row * task.input.blocks;
  }
}

void clear(float* p, int64_t count) {
  std::memset(p, 0, static_cast<size_t>(count) * sizeof(float));
}

void few_rows(const Family& family, const LinearTask& task, const TileRange& range) {
  const int row_count = static_cast<int>(range.row_end - range.row_begin);
  const int at_once = tiles_at_once(row_count);
  const int64_t row_stride = at_once * kTile;
  alignas(64) float acc[2][kMaxRows * kWideTiles * kTile];
  Rows rows;
  gather_rows(task, range.row_begin, row_count, rows);
  MicroArgs a{};
  a.input = &task.input;
  a.rows = &rows;
  a.k_end = task.weight.cols;
  a.acc_row_stride = row_stride;
  a.acc_tile_stride = kTile;
  const int weights = task.gated ? 2 : 1;
  for (int64_t tile = range.tile_begin; tile < range.tile_end;) {
    const bool wide = range.tile_end - tile >= at_once;
    const int count = wide ? at_once : 1;
    for (int i = 0; i < weights; ++i) {
      clear(acc[i], row_count * row_stride);
      a.weight = i == 0 ? &task.weight : &task.up;
      a.tile = a.weight->data + tile * a.weight->tile_stride;
      a.acc = acc[i];
      (wide ? family.wide : family.narrow)[row_count - 1](a);
    }
    for (int r = 0; r < row_count; ++r) {
      for (int t = 0; t < count; ++t) {
        const int64_t at = r * row_stride + t * kTile;
        finish(task, tile + t, range.row_begin + r, acc[0] + at, acc[weights - 1] + at);
      }
    }
    tile += count;
  }
}

struct RowBlock {
  int64_t begin;  // of the task's rows
  int64_t count;
};

// One panel of columns, for `count` tiles and the rows of a block. acc and carried are those of the first
// tile.
void panel_columns(const Family& family, const LinearTask& task, const WeightView& weight, int64_t tile,
                   int count, int64_t k_begin, int64_t k_end, const RowBlock& block, float* acc,
                   int32_t* carried, std::byte* panel) {
  MicroArgs a{};
  a.weight = &weight;
  a.input = &task.input;
  a.tile = weight.data + tile * weight.tile_stride;
  a.k_begin = k_begin;
  a.k_end = k_end;
  a.acc_row_stride = kTile;
  a.acc_tile_stride = block.count * kTile;
  if (family.unpack != nullptr) {
    a.panel = panel;
    a.panel_tile_stride = (k_end - k_begin) * family.panel_column_bytes;
    for (int t = 0; t < count; ++t) {
      family.unpack(weight, a.tile + t * weight.tile_stride, k_begin, k_end, panel + t * a.panel_tile_stride);
    }
  }
  const Micro* micros = count == kPanelTiles ? family.panel : family.panel_narrow;
  // Groups of rows that differ by at most one: 7 rows as 4 and 3, not as 6 and 1.
  const int64_t parts = (block.count + kMaxRows - 1) / kMaxRows;
  Rows rows;
  a.rows = &rows;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first = block.count * part / parts;
    const int row_count = static_cast<int>(block.count * (part + 1) / parts - first);
    gather_rows(task, block.begin + first, row_count, rows);
    a.acc = acc + first * kTile;
    a.carried = carried + first * kTile;
    micros[row_count - 1](a);
  }
}

// A few tiles for the rows of a block.
void tile_group(const Family& family, const LinearTask& task, int64_t tile, int64_t tiles,
                const RowBlock& block, std::byte* memory) {
  const int64_t panel_columns_at_once = kPanelBytes / family.panel_column_bytes / kPanelTiles;
  const int weights = task.gated ? 2 : 1;
  float* acc[2];        // [tiles][rows][kTile]; the second for `up`
  int32_t* carried[2];  // likewise
  for (int i = 0; i < 2; ++i) {
    acc[i] = reinterpret_cast<float*>(memory) + i * kAccFloats;
    carried[i] = reinterpret_cast<int32_t*>(memory) + (2 + i) * kAccFloats;
  }
  std::byte* panel = memory + 4 * kAccFloats * 4;
  for (int i = 0; i < weights; ++i) clear(acc[i], tiles * block.count * kTile);
  for (int64_t k = 0; k < task.weight.cols; k += panel_columns_at_once) {
    const int64_t k_end = min64(k + panel_columns_at_once, task.weight.cols);
    for (int i = 0; i < weights; ++i) {
      for (int64_t t = 0; t < tiles;) {
        const int count = tiles - t >= kPanelTiles ? kPanelTiles : 1;
        const int64_t at = t * block.count * kTile;
        panel_columns(family, task, i == 0 ? task.weight : task.up, tile + t, count, k, k_end, block,
                      acc[i] + at, carried[i] + at, panel);
        t += count;
      }
    }
  }
  for (int64_t r = 0; r < block.count; ++r) {
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t at = (t * block.count + r) * kTile;
      finish(task, tile + t, block.begin + r, acc[0] + at, acc[weights - 1] + at);
    }
  }
}

void many_rows(const Family& family, const LinearTask& task, const TileRange& range, std::byte* memory) {
  const int64_t rows = range.row_end - range.row_begin;
  const int64_t blocks = (rows + kRowBlock - 1) / kRowBlock;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t first = rows * b / blocks;
    const RowBlock block = {range.row_begin + first, rows * (b + 1) / blocks - first};
    for (int64_t tile = range.tile_begin; tile < range.tile_end; tile += kTileGroup) {
      tile_group(family, task, tile, min64(kTileGroup, range.tile_end - tile), block, memory);
    }
  }
}

void tiles(const LinearTask& task, const TileRange& range, std::byte* scratch) {
  const Family& family = *family_of(task);
  if (range.row_end - range.row_begin <= kMaxRows) {
    few_rows(family, task, range);
  } else {
    many_rows(family, task, range, scratch);
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

// Columns begin .. end of a row, a block; returns the sum of the codes and sets `scale`.
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
  return reduce_add(sum);
}

template <InputKind kKind>
void encode_integers(const EncodeTask& task, int64_t first, int64_t count) {
  for (int64_t r = first; r < first + count; ++r) {
    for (int64_t b = 0; b < task.blocks; ++b) {
      const int64_t begin = b * task.block;
      const int64_t end = min64(begin + task.block, task.padded_cols);
      const int64_t at = r * task.blocks + b;
      task.sums[at] = encode_block<kKind>(task, task.x + r * task.x_stride, task.codes + r * task.row_stride,
                                          begin, end, task.scales[at]);
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
