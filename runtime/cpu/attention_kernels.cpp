#include <cstddef>
#include <cstdint>
#include <cstring>

#include "runtime/cpu/attention.h"
#include "runtime/cpu/cached_codes.h"
#include "runtime/cpu/simd_math.h"
#include "runtime/cpu/simd_nibbles.h"
#include "runtime/cpu/simd_operators.h"

namespace quern::cpu::QUERN_ISA {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// The fold of some positions, per row of a tile.
struct State {
  float* maximum;  // [rows]
  float* sums;     // [rows, 16]
  float* values;   // [rows, padded_value_size]

  State(const AttentionShape&, float* p)
      : maximum(p), sums(p + kAttentionRows * 16), values(sums + kAttentionRows * 16) {}
};

QUERN_INLINE F32 load_cached(const float* p) {
  return load(p);
}
QUERN_INLINE F32 load_cached(const uint16_t* p) {
  return load_f16(p);
}
QUERN_INLINE F32 load_cached(const int8_t* p) {
  return to_f32(load_s8(p));
}
QUERN_INLINE F32 centered(I32 code) {
  return to_f32(sub_i(code, set1_i(8)));
}

// Matrices of cached elements, in columns of 16: lanes(f, k) are row k of column f.
template <class E>
struct Whole {
  static constexpr bool kPairs = false;
  const E* at;
  int64_t stride;  // elements from a column to the next
  QUERN_INLINE F32 lanes(int64_t f, int64_t k) const { return load_cached(at + f * stride + k * 16); }
  Whole column(int64_t f) const { return {at + f * stride, stride}; }
  Whole row(int64_t k) const { return {at + k * 16, stride}; }
};
// 4 bits, two features of 16 values in a byte.
struct HalfLanes {
  static constexpr bool kPairs = false;
  const uint8_t* at;
  int64_t stride;  // bytes
  QUERN_INLINE F32 lanes(int64_t f, int64_t k) const { return centered(load_u4(at + f * stride + k * 8)); }
  HalfLanes column(int64_t f) const { return {at + f * stride, stride}; }
  HalfLanes row(int64_t k) const { return {at + k * 8, stride}; }
};
// 4 bits, two rows in a byte: read together.
struct HalfRows {
  static constexpr bool kPairs = true;
  const uint8_t* at;
  int64_t stride;  // bytes
  QUERN_INLINE I32 both(int64_t f, int64_t k) const { return load_u8(at + f * stride + k / 2 * 16); }
  QUERN_INLINE F32 lanes(int64_t f, int64_t k) const { return first(both(f, k)); }  // of even k
  QUERN_INLINE F32 first(I32 codes) const { return centered(and_i(codes, set1_i(15))); }
  QUERN_INLINE F32 second(I32 codes) const { return centered(shift_right_logical<4>(codes)); }
  HalfRows column(int64_t f) const { return {at + f * stride, stride}; }
};

// How a block's elements are kept.
template <class E>
struct Format {
  static constexpr bool kScaled = sizeof(E) == 1;
  using Keys = Whole<E>;
  using Values = Whole<E>;
  static Keys keys(const AttentionShape& shape, const std::byte* head) {
    return {reinterpret_cast<const E*>(head), shape.head_size * 16};
  }
  static Values values(const AttentionShape& shape, const std::byte* head) {
    return {reinterpret_cast<const E*>(head + shape.key_bytes()), kCacheBlock * 16};
  }
};
struct Nibble {};
template <>
struct Format<Nibble> {
  static constexpr bool kScaled = true;
  using Keys = HalfRows;
  using Values = HalfLanes;
  static Keys keys(const AttentionShape& shape, const std::byte* head) {
    return {reinterpret_cast<const uint8_t*>(head), (shape.head_size + 1) / 2 * 16};
  }
  static Values values(const AttentionShape& shape, const std::byte* head) {
    return {reinterpret_cast<const uint8_t*>(head + shape.key_bytes()), kCacheBlock * 8};
  }
};

// Of the positions' keys; those of their values follow.
float* scales_of(const AttentionShape& shape, std::byte* head) {
  return reinterpret_cast<float*>(head + shape.key_bytes() + shape.value_bytes());
}
const float* scales_of(const AttentionShape& shape, const std::byte* head) {
  return reinterpret_cast<const float*>(head + shape.key_bytes() + shape.value_bytes());
}

// c[r][16 f + i] = (factors ? c[r][16 f + i] * factors[r] : 0) + sum over k of a[r][k] * b[f][k][i], k
// ascending.
template <int R, int F, class B>
inline void product(const float* a, int64_t a_stride, const B& b, int64_t n, float* c, int64_t c_stride,
                    const float* factors) {
  F32 sums[R][F];
  for (int r = 0; r < R; ++r) {
    for (int f = 0; f < F; ++f) {
      sums[r][f] = factors != nullptr ? load(c + r * c_stride + f * 16) * set1(factors[r]) : zero_f();
    }
  }
  int64_t k = 0;
  if constexpr (B::kPairs) {
    for (; k + 2 <= n; k += 2) {
      for (int f = 0; f < F; ++f) {
        const I32 codes = b.both(f, k);
        const F32 even = b.first(codes), odd = b.second(codes);
        for (int r = 0; r < R; ++r) sums[r][f] = fmadd(set1(a[r * a_stride + k]), even, sums[r][f]);
        for (int r = 0; r < R; ++r) sums[r][f] = fmadd(set1(a[r * a_stride + k + 1]), odd, sums[r][f]);
      }
    }
  }
  for (; k < n; ++k) {
    for (int f = 0; f < F; ++f) {
      const F32 lanes = b.lanes(f, k);
      for (int r = 0; r < R; ++r) sums[r][f] = fmadd(set1(a[r * a_stride + k]), lanes, sums[r][f]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int f = 0; f < F; ++f) store(c + r * c_stride + f * 16, sums[r][f]);
  }
}

// As many columns of 16 at once as the registers hold sums for, and enough to hide the latency of an FMA.
template <int R>
constexpr int columns_at_once() {
#if QUERN_ISA_LEVEL >= 3
  return R <= 2 ? 8 : 4;
#elif QUERN_ISA_LEVEL >= 1
  return R == 1 ? 4 : R <= 3 ? 2 : 1;
#else
  return R == 1 ? 2 : 1;
#endif
}

template <int R, int F, class B>
inline void columns(const float* a, int64_t a_stride, const B& b, int64_t count, int64_t n, float* c,
                    int64_t c_stride, const float* factors) {
  int64_t f = 0;
  for (; f + F <= count; f += F) {
    product<R, F>(a, a_stride, b.column(f), n, c + f * 16, c_stride, factors);
  }
  if constexpr (F > 1) {
    if (f < count) {
      columns<R, F / 2>(a, a_stride, b.column(f), count - f, n, c + f * 16, c_stride, factors);
    }
  }
}

// The product above for any number of rows and `count` columns of 16. A sum's order is that of k, whatever
// the blocking.
template <class B>
void multiply(int64_t rows, const float* a, int64_t a_stride, const B& b, int64_t count, int64_t n, float* c,
              int64_t c_stride, const float* factors) {
  const auto run = [&]<int R>() {
    columns<R, columns_at_once<R>()>(a, a_stride, b, count, n, c, c_stride, factors);
    a += R * a_stride;
    c += R * c_stride;
    if (factors != nullptr) factors += R;
    rows -= R;
  };
  while (rows >= 6) run.template operator()<6>();
  switch (rows) {
    case 5:
      return run.template operator()<5>();
    case 4:
      return run.template operator()<4>();
    case 3:
      return run.template operator()<3>();
    case 2:
      return run.template operator()<2>();
    case 1:
      return run.template operator()<1>();
    default:
      return;
  }
}

float exp1(float x) {
  alignas(64) float lanes[16];
  store(lanes, exp(set1(x)));
  return lanes[0];
}

// One block's scores of one row become weights; `begin` .. `end` - 1 are the positions in the block that it
// sees.
struct RowScores {
  const AttentionShape& shape;
  int64_t head;
  int64_t position;     // of the query
  int64_t block_start;  // position of the block's slot 0
  int64_t begin;
  int64_t end;

  F32 finished(F32 s, int64_t slot) const {
    if (shape.softcap > 0) s = set1(shape.softcap) * tanh(s / set1(shape.softcap));
    if (shape.slopes != nullptr) {
      const F32 distance = lane_numbers() + set1(static_cast<float>(block_start + slot - position));
      s = fmadd(set1(shape.slopes[head]), distance, s);
    }
    return drop_first(keep_first(s, end - slot, set1(kMinusInfinity)), begin - slot, set1(kMinusInfinity));
  }

  // Returns the factor by which what was folded before shrinks.
  float fold(float* scores, float* maximum, float* sums) const {
    const int64_t used = (end + 15) / 16 * 16;
    F32 top = set1(kMinusInfinity);
    for (int64_t slot = 0; slot < used; slot += 16) {
      const F32 s = finished(load(scores + slot), slot);
      store(scores + slot, s);
      top = max(top, s);
    }
    const float block_top = reduce_max(top);
    const float new_top = *maximum > block_top ? *maximum : block_top;
    const float factor = exp1(*maximum - new_top);
    *maximum = new_top;
    F32 sum = load(sums) * set1(factor);
    for (int64_t slot = 0; slot < used; slot += 16) {
      const F32 weight = exp(load(scores + slot) - set1(new_top));
      store(scores + slot, weight);
      sum = sum + weight;
    }
    store(sums, sum);
    return factor;
  }
};

template <class E>
class TileFold {
 public:
  TileFold(const AttentionShape& shape, const AttentionTile& tile, float* scratch)
      : shape_(shape),
        tile_(tile),
        rows_(tile.tokens * tile.heads),
        q_(scratch),
        scores_(q_ + kAttentionRows * (shape.head_size + 16)),
        factors_(scores_ + kAttentionRows * kCacheBlock) {
    const F32 scale = set1(shape.scale);
    const float* channels = Format<E>::kScaled && shape.key_scales != nullptr
                                ? shape.key_scales + tile.first_head / shape.group() * shape.head_size
                                : nullptr;
    for (int64_t r = 0; r < rows_; ++r) {
      const float* from = tile.q + r / tile.heads * tile.q_stride + r % tile.heads * shape.head_size;
      float* to = q_ + r * shape.head_size;
      for (int64_t i = 0; i < shape.head_size; i += 16) {
        const int64_t lanes = shape.head_size - i < 16 ? shape.head_size - i : 16;
        F32 q = load_lanes(from + i, lanes) * scale;
        if (channels != nullptr) q = q * load_lanes(channels + i, lanes);
        store_lanes(to + i, q, lanes);
      }
    }
  }

  static float* rest(const AttentionShape& shape, float* scratch) {
    return scratch + kAttentionRows * (shape.head_size + 16 + kCacheBlock + 32);
  }

  void span(int64_t index, State& state) {
    for (int64_t r = 0; r < rows_; ++r) state.maximum[r] = kMinusInfinity;
    std::memset(state.sums, 0, static_cast<size_t>(rows_ * 16) * sizeof(float));
    std::memset(state.values, 0, static_cast<size_t>(rows_ * shape_.padded_value_size()) * sizeof(float));
    const int64_t last = tile_.first_position + tile_.tokens - 1;
    const int64_t oldest = shape_.window > 0 ? tile_.first_position - shape_.window + 1 : 0;
    const int64_t from = index * kAttentionSpan > oldest ? index * kAttentionSpan : oldest;
    const int64_t to = (index + 1) * kAttentionSpan - 1 < last ? (index + 1) * kAttentionSpan - 1 : last;
    for (int64_t b = from / kCacheBlock; b <= to / kCacheBlock; ++b) block(b, state);
  }

 private:
  int64_t position(int64_t token) const { return tile_.first_position + token; }
  int64_t begin_of(int64_t token, int64_t start) const {
    const int64_t oldest = shape_.window > 0 ? position(token) - shape_.window + 1 : 0;
    return oldest > start ? oldest - start : 0;
  }
  int64_t end_of(int64_t token, int64_t start) const {
    const int64_t end = position(token) - start + 1;
    return end < kCacheBlock ? end : kCacheBlock;
  }

  void block(int64_t b, State& state) {
    const int64_t start = b * kCacheBlock;
    const int64_t kv_head = tile_.first_head / shape_.group();
    const std::byte* head = tile_.blocks[b] + kv_head * shape_.head_bytes();
    const auto keys = Format<E>::keys(shape_, head);
    const auto values = Format<E>::values(shape_, head);
    const int64_t seen = end_of(tile_.tokens - 1, start);
    multiply(rows_, q_, shape_.head_size, keys, (seen + 15) / 16, shape_.head_size, scores_, kCacheBlock,
             nullptr);
    if constexpr (Format<E>::kScaled) {
      for (int64_t r = 0; r < rows_; ++r)
        scale_row(scores_ + r * kCacheBlock, scales_of(shape_, head), 0, seen);
    }
    bool all_see_all = true;
    for (int64_t t = 0; t < tile_.tokens; ++t) {
      const int64_t begin = begin_of(t, start), end = end_of(t, start);
      all_see_all = all_see_all && begin == 0 && end == kCacheBlock;
      if (begin >= end) continue;
      for (int64_t h = 0; h < tile_.heads; ++h) {
        const int64_t r = t * tile_.heads + h;
        const RowScores row = {shape_, tile_.first_head + h, position(t), start, begin, end};
        factors_[r] = row.fold(scores_ + r * kCacheBlock, state.maximum + r, state.sums + r * 16);
        // What a weight is multiplied with is the code of a value.
        if constexpr (Format<E>::kScaled)
          scale_row(scores_ + r * kCacheBlock, scales_of(shape_, head) + kCacheBlock, begin, end);
      }
    }
    const int64_t width = shape_.padded_value_size();
    if (all_see_all) {
      multiply(rows_, scores_, kCacheBlock, values, width / 16, kCacheBlock, state.values, width, factors_);
      return;
    }
    // Values that a token does not see are not even multiplied by 0: they may be infinite.
    for (int64_t t = 0; t < tile_.tokens; ++t) {
      const int64_t begin = begin_of(t, start), end = end_of(t, start), r = t * tile_.heads;
      if (begin >= end) continue;
      multiply(tile_.heads, scores_ + r * kCacheBlock + begin, kCacheBlock, values.row(begin), width / 16,
               end - begin, state.values + r * width, width, factors_ + r);
    }
  }

  // x[i] *= scales[i] for the lanes of 16 that hold begin .. end - 1; what other positions hold is not used.
  static void scale_row(float* x, const float* scales, int64_t begin, int64_t end) {
    for (int64_t i = begin / 16 * 16; i < end; i += 16) store(x + i, load(x + i) * load(scales + i));
  }

  const AttentionShape& shape_;
  const AttentionTile& tile_;
  const int64_t rows_;
  float* q_;        // [rows, head_size], scaled
  float* scores_;   // [rows, 64]
  float* factors_;  // [rows]
};

// Folds the positions of `part`, all later than those of `total`, into it.
void merge(int64_t rows, int64_t width, State& total, const State& part) {
  for (int64_t r = 0; r < rows; ++r) {
    if (part.maximum[r] == kMinusInfinity) continue;
    float* sums = total.sums + r * 16;
    float* values = total.values + r * width;
    const float* part_sums = part.sums + r * 16;
    const float* part_values = part.values + r * width;
    const float top = total.maximum[r] > part.maximum[r] ? total.maximum[r] : part.maximum[r];
    const F32 ours = set1(exp1(total.maximum[r] - top)), theirs = set1(exp1(part.maximum[r] - top));
    total.maximum[r] = top;
    store(sums, fmadd(load(part_sums), theirs, load(sums) * ours));
    for (int64_t i = 0; i < width; i += 16) {
      store(values + i, fmadd(load(part_values + i), theirs, load(values + i) * ours));
    }
  }
}

void write_out(const AttentionShape& shape, const AttentionTile& tile, const State& state) {
  for (int64_t r = 0; r < tile.tokens * tile.heads; ++r) {
    const int64_t h = r % tile.heads;
    const float sum = reduce_add(load(state.sums + r * 16));
    float factor = 1.0f / sum;
    if (shape.sinks != nullptr) {
      const float sink = shape.sinks[tile.first_head + h];
      const float top = state.maximum[r] > sink ? state.maximum[r] : sink;
      const float shrink = exp1(state.maximum[r] - top);
      factor = shrink / (sum * shrink + exp1(sink - top));
    }
    const float* values = state.values + r * shape.padded_value_size();
    float* out = tile.out + r / tile.heads * tile.out_stride + h * shape.value_size;
    for (int64_t i = 0; i < shape.value_size; i += 16) {
      const int64_t lanes = shape.value_size - i < 16 ? shape.value_size - i : 16;
      store_lanes(out + i, load(values + i) * set1(factor), lanes);
    }
  }
}

template <class E>
void attend_as(const AttentionShape& shape, const AttentionTile& tile, float* scratch) {
  TileFold<E> fold(shape, tile, scratch);
  float* rest = TileFold<E>::rest(shape, scratch);
  State total(shape, rest);
  State part(shape, rest + AttentionScratch::state_floats(shape));
  const SpanRange spans = spans_of(shape, tile);
  fold.span(spans.first, total);
  for (int64_t s = spans.first + 1; s <= spans.last; ++s) {
    fold.span(s, part);
    merge(tile.tokens * tile.heads, shape.padded_value_size(), total, part);
  }
  write_out(shape, tile, total);
}

// body.operator()<E>() for the elements that the cache holds.
template <class Body>
QUERN_INLINE void with_elements(const AttentionShape& shape, const Body& body) {
  switch (shape.cache_dtype) {
    case DType::F16:
      return body.template operator()<uint16_t>();
    case DType::I8:
      return body.template operator()<int8_t>();
    case DType::I4:
      return body.template operator()<Nibble>();
    default:
      return body.template operator()<float>();
  }
}

void attend(const AttentionShape& shape, const AttentionTile& tile, float* scratch) {
  with_elements(shape, [&]<class E>() { attend_as<E>(shape, tile, scratch); });
}

void attend_span(const AttentionShape& shape, const AttentionTile& tile, int64_t span, float* out,
                 float* scratch) {
  State state(shape, out);
  with_elements(shape, [&]<class E>() { TileFold<E>(shape, tile, scratch).span(span, state); });
}

void finish(const AttentionShape& shape, const AttentionTile& tile, float* states, int64_t state_stride,
            int64_t spans) {
  State total(shape, states);
  for (int64_t s = 1; s < spans; ++s) {
    merge(tile.tokens * tile.heads, shape.padded_value_size(), total,
          State(shape, states + s * state_stride));
  }
  write_out(shape, tile, total);
}

float to_element(float x, const float*) {
  return x;
}
// Finite values stay finite.
uint16_t to_element(float x, const uint16_t*) {
  const F32 limit = set1(65504.0f);
  uint16_t lanes[16];
  store_f16(lanes, max(-limit, min(limit, set1(x))));
  return lanes[0];
}
void store_value(float* p, F32 a) {
  store(p, a);
}
void store_value(uint16_t* p, F32 a) {
  const F32 limit = set1(65504.0f);
  store_f16(p, max(-limit, min(limit, a)));
}

template <class E>
void append_as(const AttentionShape& shape, std::byte* block, int64_t head, int64_t slot, const float* k,
               const float* v) {
  E* keys = reinterpret_cast<E*>(block + head * shape.head_bytes());
  E* values = keys + shape.key_elements() + slot * 16;
  keys += slot / 16 * shape.head_size * 16 + slot % 16;
  for (int64_t d = 0; d < shape.head_size; ++d)
    keys[d * 16] = to_element(k[d], static_cast<const E*>(nullptr));
  for (int64_t d = 0; d < shape.value_size; d += 16) {
    const int64_t lanes = shape.value_size - d < 16 ? shape.value_size - d : 16;
    store_value(values + d * kCacheBlock, load_lanes(v + d, lanes));
  }
}

// A key or value on its way to integers (cached_codes.h).
class CodedRow {
 public:
  // `channels`: what the elements are divided by first, or null.
  CodedRow(const float* x, const float* channels, int64_t size, int bits)
      : x_(x), channels_(channels), size_(size), limit_(bits == 8 ? 127.0F : 7.0F) {
    F32 low = zero_f(), high = zero_f(), broken = zero_f();
    for (int64_t d = 0; d < size; d += 16) {
      const F32 lanes = at(d);
      low = min(low, lanes);
      high = max(high, lanes);
      broken = fmadd(lanes, zero_f(), broken);  // NaN where a lane is not finite
    }
    const float least = -reduce_max(-low), most = reduce_max(high);
    const float extreme = most > -least ? most : least;
    if (bits == 8) {
      least_ = -limit_;
      set_scale((extreme < 0 ? -extreme : extreme) / limit_);
    } else {
      least_ = -8.0F;
      search(extreme);
    }
    scale_ += reduce_add(broken);
  }

  float scale() const { return scale_; }
  I32 codes(int64_t d) const { return round_i32(steps(d)); }

 private:
  F32 at(int64_t d) const {
    const int64_t lanes = size_ - d < 16 ? size_ - d : 16;
    const F32 x = load_lanes(x_ + d, lanes);
    if (channels_ == nullptr) return x;
    return lanes == 16 ? x / load(channels_ + d)
                       : keep_first(x / load_lanes(channels_ + d, lanes), lanes, zero_f());
  }
  void set_scale(float scale) {
    scale_ = scale;
    divisor_ = scale == 0 ? 1.0F : scale;
  }
  // Clamped, not yet rounded.
  F32 steps(int64_t d) const { return max(set1(least_), min(set1(limit_), at(d) / set1(divisor_))); }

  void search(float extreme) {
    if (extreme == 0) return set_scale(0);
    float best_scale = 0, best_error = 0;
    bool first = true;
    for (const float range : kCodeRanges) {
      set_scale(extreme / range);
      if (scale_ == 0) return;
      F32 error = zero_f(), xq = zero_f(), qq = zero_f();
      for (int64_t d = 0; d < size_; d += 16) {
        const F32 x = at(d), q = to_f32(codes(d)), difference = x - q * set1(scale_);
        error = fmadd(difference, difference, error);
        xq = fmadd(x, q, xq);
        qq = fmadd(q, q, qq);
      }
      const float sum = reduce_add(error);
      if (first || sum < best_error) {
        best_error = sum;
        best_scale = scale_;
        const float squares = reduce_add(qq);
        fitted_ = squares > 0 ? reduce_add(xq) / squares : scale_;
      }
      first = false;
    }
    set_scale(best_scale);
    scale_ = fitted_;  // codes stay those of best_scale
  }

  const float* x_;
  const float* channels_;
  int64_t size_;
  float limit_;
  float least_ = 0;
  float scale_ = 0;    // that codes are multiplied with
  float divisor_ = 1;  // that made them
  float fitted_ = 0;
};

const float* channels_of(const AttentionShape& shape, int64_t head) {
  return shape.key_scales == nullptr ? nullptr : shape.key_scales + head * shape.head_size;
}

template <>
void append_as<int8_t>(const AttentionShape& shape, std::byte* block, int64_t head, int64_t slot,
                       const float* k, const float* v) {
  block += head * shape.head_bytes();
  auto* keys = reinterpret_cast<int8_t*>(block) + slot / 16 * shape.head_size * 16 + slot % 16;
  auto* values = reinterpret_cast<int8_t*>(block + shape.key_bytes()) + slot * 16;
  const CodedRow key(k, channels_of(shape, head), shape.head_size, 8), value(v, nullptr, shape.value_size, 8);
  for (int64_t d = 0; d < shape.head_size; d += 16) {
    int8_t codes[16];
    store_low8(codes, key.codes(d));
    const int64_t lanes = shape.head_size - d < 16 ? shape.head_size - d : 16;
    for (int64_t i = 0; i < lanes; ++i) keys[(d + i) * 16] = codes[i];
  }
  for (int64_t d = 0; d < shape.value_size; d += 16) store_low8(values + d * kCacheBlock, value.codes(d));
  float* scales = scales_of(shape, block);
  scales[slot] = key.scale();
  scales[kCacheBlock + slot] = value.scale();
}

template <>
void append_as<Nibble>(const AttentionShape& shape, std::byte* block, int64_t head, int64_t slot,
                       const float* k, const float* v) {
  block += head * shape.head_bytes();
  auto* keys = reinterpret_cast<uint8_t*>(block) + slot / 16 * ((shape.head_size + 1) / 2 * 16) + slot % 16;
  auto* values = reinterpret_cast<uint8_t*>(block + shape.key_bytes()) + slot * 8;
  const CodedRow key(k, channels_of(shape, head), shape.head_size, 4), value(v, nullptr, shape.value_size, 4);
  uint8_t codes[16];
  for (int64_t d = 0; d < shape.head_size; d += 16) {
    store_low8(codes, add_i(key.codes(d), set1_i(8)));
    for (int64_t i = 0; i < 16 && d + i < shape.head_size; i += 2)
      keys[(d + i) / 2 * 16] = static_cast<uint8_t>(codes[i] | codes[i + 1] << 4);
  }
  for (int64_t d = 0; d < shape.value_size; d += 16) {
    store_low8(codes, add_i(value.codes(d), set1_i(8)));
    for (int i = 0; i < 8; ++i)
      values[d / 2 * kCacheBlock + i] = static_cast<uint8_t>(codes[i] | codes[i + 8] << 4);
  }
  float* scales = scales_of(shape, block);
  scales[slot] = key.scale();
  scales[kCacheBlock + slot] = value.scale();
}

void append(const AttentionShape& shape, std::byte* block, int64_t head, int64_t slot, const float* k,
            const float* v) {
  with_elements(shape, [&]<class E>() { append_as<E>(shape, block, head, slot, k, v); });
}

// Elements T as they lie: `key_rows` of 16 positions' keys, `lanes` of a position's 16 values.
template <class T>
void copy_slots_as(const AttentionShape& shape, int64_t key_rows, int64_t lanes, const std::byte* from,
                   int64_t from_slot, std::byte* to, int64_t to_slot, int64_t count) {
  const T* keys = reinterpret_cast<const T*>(from);
  T* targets = reinterpret_cast<T*>(to);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t a = from_slot + i, b = to_slot + i;
    const T* key = keys + a / 16 * key_rows * 16 + a % 16;
    T* target = targets + b / 16 * key_rows * 16 + b % 16;
    for (int64_t d = 0; d < key_rows; ++d) target[d * 16] = key[d * 16];
  }
  const T* values = reinterpret_cast<const T*>(from + shape.key_bytes());
  targets = reinterpret_cast<T*>(to + shape.key_bytes());
  for (int64_t d = 0; d < shape.padded_value_size() / 16; ++d) {
    const int64_t column = d * kCacheBlock * lanes;
    std::memmove(targets + column + to_slot * lanes, values + column + from_slot * lanes,
                 static_cast<size_t>(count * lanes) * sizeof(T));
  }
  if (!shape.has_scales()) return;
  for (int64_t i = 0; i < 2; ++i) {
    std::memmove(scales_of(shape, to) + i * kCacheBlock + to_slot,
                 scales_of(shape, from) + i * kCacheBlock + from_slot,
                 static_cast<size_t>(count) * sizeof(float));
  }
}

void copy_slots(const AttentionShape& shape, int64_t head, const std::byte* from, int64_t from_slot,
                std::byte* to, int64_t to_slot, int64_t count) {
  from += head * shape.head_bytes();
  to += head * shape.head_bytes();
  const auto copy = [&]<class T>(int64_t key_rows, int64_t lanes) {
    copy_slots_as<T>(shape, key_rows, lanes, from, from_slot, to, to_slot, count);
  };
  switch (shape.cache_dtype) {
    case DType::F16:
      return copy.operator()<uint16_t>(shape.head_size, 16);
    case DType::I8:
      return copy.operator()<uint8_t>(shape.head_size, 16);
    case DType::I4:
      return copy.operator()<uint8_t>((shape.head_size + 1) / 2, 8);
    default:
      return copy.operator()<float>(shape.head_size, 16);
  }
}

}  // namespace

extern const AttentionKernels attention_kernels;
const AttentionKernels attention_kernels = {append, copy_slots, attend, attend_span, finish};

}  // namespace quern::cpu::QUERN_ISA
