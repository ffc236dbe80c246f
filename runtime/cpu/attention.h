// Attention over keys and values kept in blocks of 64 positions.
//
// A block belongs to one layer of one sequence and holds positions 64b .. 64b + 63. For each KV head in turn:
//
//   keys    [4][key_size][16]         sub-block of 16 positions, feature, position: scores come 16 positions
//                                     at a time
//   values  [value_size/16][64][16]   16 features, position, feature; value_size is padded with zeros to 16
//   scales  [2][64]                   of integers alone: floats, of the positions' keys and of their values
//
// Elements are float, binary16, or integers of 8 or 4 bits (cached_codes.h). Of the latter two share a byte,
// the first in its low half: of keys features 2i and 2i + 1, of values features i and i + 8 of the 16; a
// position has its bytes to itself, so that threads may append positions side by side. The result for a query
// is computed in one order whatever is computed beside it: within a block a query's scores and then its sums
// run over ascending features and positions, blocks of a span of 512 positions are folded in ascending order
// into a running maximum and sum (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018;
// Dao, FlashAttention-2, 2023), and so are the spans. Positions that a query does not see count for nothing,
// as if they were not there. Spans may be computed by different threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ir/dtype.h"

namespace quern::cpu {

inline constexpr int64_t kCacheBlock = 64;  // positions of a block
inline constexpr int64_t kAttentionSpan =
    8 * kCacheBlock;                           // positions that are folded before spans are merged
inline constexpr int64_t kAttentionRows = 24;  // most query rows of a tile: tokens x heads

struct AttentionShape {
  int64_t heads = 0;
  int64_t kv_heads = 0;            // divides heads; query head h reads KV head h / (heads / kv_heads)
  int64_t head_size = 0;           // of queries and keys
  int64_t value_size = 0;          // of a head's values
  float scale = 0;                 // of q.k
  float softcap = 0;               // c: scores become c tanh(s / c); 0: none
  int64_t window = 0;              // a query at position p sees positions > p - window; 0: all up to its own
  const float* sinks = nullptr;    // [heads] a logit that counts in the denominator alone
  const float* slopes = nullptr;   // [heads] ALiBi: slope * (j - p) is added to the score of position j
  DType cache_dtype = DType::F32;  // F32, F16, I8 or I4
  // [kv_heads * head_size] what keys are divided by before they become integers; null: 1
  const float* key_scales = nullptr;

  int64_t group() const { return heads / kv_heads; }
  int64_t padded_value_size() const { return (value_size + 15) / 16 * 16; }
  int64_t key_elements() const { return kCacheBlock * head_size; }  // of a block and head
  int64_t value_elements() const { return kCacheBlock * padded_value_size(); }
  bool has_scales() const { return cache_dtype == DType::I8 || cache_dtype == DType::I4; }
  int64_t key_bytes() const {
    return cache_dtype == DType::I4 ? kCacheBlock * ((head_size + 1) / 2) : bytes_of(key_elements());
  }
  int64_t value_bytes() const { return bytes_of(value_elements()); }
  int64_t scale_bytes() const { return has_scales() ? 2 * kCacheBlock * 4 : 0; }
  int64_t head_bytes() const { return key_bytes() + value_bytes() + scale_bytes(); }
  int64_t block_bytes() const { return kv_heads * head_bytes(); }

 private:
  int64_t bytes_of(int64_t elements) const {
    switch (cache_dtype) {
      case DType::F16:
        return elements * 2;
      case DType::I8:
        return elements;
      case DType::I4:
        return elements / 2;
      default:
        return elements * 4;
    }
  }
};

// Queries of consecutive tokens of one sequence, by some heads that share a KV head; at most kAttentionRows
// rows.
struct AttentionTile {
  const float* q = nullptr;  // the first token's query of the first head; heads follow one another
  int64_t q_stride = 0;      // floats from a token to the next
  float* out = nullptr;      // likewise, of heads' value_size
  int64_t out_stride = 0;
  int64_t tokens = 0;
  int64_t first_position = 0;  // of the first token
  int64_t first_head = 0;
  int64_t heads = 0;
  // blocks[b]: of positions 64b on; may be null where no query of the tile sees it.
  const std::byte* const* blocks = nullptr;
};

// The folded state of a tile over some positions, per row: maximum [rows], sums [rows, 16], weighted values
// [rows, padded_value_size]. `floats` of scratch are needed.
struct AttentionScratch {
  static int64_t state_floats(const AttentionShape& shape) {
    return kAttentionRows * (16 + 16 + shape.padded_value_size());
  }
  static int64_t floats(const AttentionShape& shape) {
    return kAttentionRows * (shape.head_size + 16 + kCacheBlock + 32) + 2 * state_floats(shape);
  }
};

struct AttentionKernels {
  // Stores a token's key [head_size] and value [value_size] of KV head `head` at `slot` (0..63) of a block.
  void (*append)(const AttentionShape& shape, std::byte* block, int64_t head, int64_t slot, const float* k,
                 const float* v);
  // Copies `count` slots of KV head `head` from one block to another, or within one to lower slots.
  void (*copy_slots)(const AttentionShape& shape, int64_t head, const std::byte* from, int64_t from_slot,
                     std::byte* to, int64_t to_slot, int64_t count);
  // The whole of a tile: out = softmax(...) v. `scratch`: AttentionScratch::floats.
  void (*attend)(const AttentionShape& shape, const AttentionTile& tile, float* scratch);
  // One span of a tile, folded into `state` (state_floats); then all of a tile's states, in ascending order
  // of their spans, to its output. Together they give the bits that attend gives.
  void (*attend_span)(const AttentionShape& shape, const AttentionTile& tile, int64_t span, float* state,
                      float* scratch);
  void (*finish)(const AttentionShape& shape, const AttentionTile& tile, float* states, int64_t state_stride,
                 int64_t spans);
};

// The spans that a tile's queries see: first .. last.
struct SpanRange {
  int64_t first = 0;
  int64_t last = 0;
};
inline SpanRange spans_of(const AttentionShape& shape, const AttentionTile& tile) {
  const int64_t oldest = shape.window > 0 ? tile.first_position - shape.window + 1 : 0;
  return {(oldest > 0 ? oldest : 0) / kAttentionSpan,
          (tile.first_position + tile.tokens - 1) / kAttentionSpan};
}

// The kernels of active_isa(), or the reference's where that is forced.
const AttentionKernels& attention_kernels();
const AttentionKernels& reference_attention_kernels();

}  // namespace quern::cpu
