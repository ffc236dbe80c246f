#include "runtime/decoder/attention_step.h"

#include <algorithm>
#include <cstring>

#include "runtime/decoder/sequence_state.h"

namespace quern::runtime {

using cpu::kAttentionRows;
using cpu::kAttentionSpan;
using cpu::kCacheBlock;

AttentionStep::AttentionStep(const PlanKernels& kernels, int layer, const cpu::AttentionShape& shape,
                             const Operands& operands)
    : kernels_(kernels), layer_(layer), shape_(shape), at_(operands) {
  kind = "attention";
  row_local = false;
  reads = {at_.k, at_.v};
  if (at_.q.defined()) reads.push_back(at_.q);
  for (const auto& spec : {at_.rotate_q, at_.rotate_k}) {
    if (spec) reads.push_back(spec->table);
  }
  if (at_.out.defined()) writes = {at_.out};
}

int64_t AttentionStep::scratch_floats(const cpu::AttentionShape& shape) {
  // Beside the kernel's own: a tile's rotated queries, and one key.
  const int64_t floats = cpu::AttentionScratch::floats(shape) + (kAttentionRows + 1) * shape.head_size;
  return (floats + 15) / 16 * 16;
}

int64_t AttentionStep::states_floats(const cpu::AttentionShape& shape, int64_t positions, int threads) {
  return 2 * threads * (positions / kAttentionSpan + 2) * cpu::AttentionScratch::state_floats(shape);
}

void AttentionStep::reserve(TreeScratch& scratch, const cpu::AttentionShape& shape, int64_t base,
                            int64_t tokens) {
  const int64_t first = base / kCacheBlock, last = (base + tokens - 1) / kCacheBlock;
  const auto bytes = static_cast<size_t>((last - first + 1) * shape.block_bytes());
  if (scratch.blocks.size() < bytes) scratch.blocks.resize(bytes);
  if (scratch.table.size() < static_cast<size_t>(last + 1))
    scratch.table.resize(static_cast<size_t>(last + 1));
  if (scratch.path.size() < static_cast<size_t>(tokens)) scratch.path.resize(static_cast<size_t>(tokens));
}

// The queries of a tree's token see the other branches as if they were not there: each is an item of its own.
template <class Body>
void AttentionStep::for_each_item(const Pass& pass, Body&& body) const {
  const int64_t heads = tile_heads(), tile_tokens = std::max<int64_t>(1, kAttentionRows / heads);
  int64_t index = 0;
  for (const Piece& piece : pass.pieces) {
    if (piece.tree) {
      for (int64_t i = 0; i < piece.rows; ++i)
        body(index++, Item{&piece, piece.first_row + i, 1, 0, shape_.heads});
      continue;
    }
    for (int64_t kv = 0; kv < shape_.kv_heads; ++kv) {
      for (int64_t h = 0; h < shape_.group(); h += heads) {
        for (int64_t t = 0; t < piece.rows; t += tile_tokens) {
          body(index++, Item{&piece, piece.first_row + t, std::min(tile_tokens, piece.rows - t),
                             kv * shape_.group() + h, std::min(heads, shape_.group() - h)});
        }
      }
    }
  }
}

struct AttentionStep::Run {
  const AttentionStep& step;
  const Pass& pass;
  int thread;
  cpu::AttentionShape shape;
  float* scratch;  // of this thread: rotated queries, a key, then the kernel's own
  RowView q, k, v, out;
  const Piece* gathered = nullptr;  // whose committed slots are in the tree scratch

  Run(const AttentionStep& s, const Pass& p, int t)
      : step(s),
        pass(p),
        thread(t),
        shape(s.shape_),
        scratch(p.attention_scratch + t * p.attention_scratch_stride),
        k(p.view(s.at_.k)),
        v(p.view(s.at_.v)) {
    if (s.at_.q.defined()) {
      q = p.view(s.at_.q);
      out = p.view(s.at_.out);
    }
    shape.cache_dtype = p.cache_dtype;
  }

  float* kernel_scratch() const { return scratch + (kAttentionRows + 1) * shape.head_size; }
  const cpu::AttentionKernels& kernels() const { return *step.kernels_.attention; }

  void append(const Piece& piece, int64_t row, int64_t kv_head) {
    const int64_t slot = piece.first_slot + row - piece.first_row;
    const float* key = k[row] + kv_head * shape.head_size;
    if (step.at_.rotate_k) {
      float* rotated = scratch + kAttentionRows * shape.head_size;
      std::memcpy(rotated, key, static_cast<size_t>(shape.head_size) * sizeof(float));
      rotate_row(*step.kernels_.rows, *step.at_.rotate_k, pass.view(step.at_.rotate_k->table)[row], rotated,
                 1);
      key = rotated;
    }
    std::byte* block = piece.sequence->cache.block(step.layer_, slot / kCacheBlock);
    kernels().append(shape, block, kv_head, slot % kCacheBlock, key, v[row] + kv_head * shape.value_size);
  }

  void append_all() {
    const int64_t kv_heads = shape.kv_heads;
    for (const Piece& piece : pass.pieces) {
      const cpu::Range range = cpu::part_of(piece.rows * kv_heads, thread, pass.threads);
      for (int64_t i = range.begin; i < range.end; ++i) {
        append(piece, piece.first_row + i % piece.rows, i / piece.rows);
      }
    }
  }

  cpu::AttentionTile tile_of(const Item& item) {
    cpu::AttentionTile tile;
    tile.tokens = item.tokens;
    tile.first_position = pass.positions[item.first_row];
    tile.first_head = item.first_head;
    tile.heads = item.heads;
    tile.blocks = item.piece->tree ? gather(item) : item.piece->sequence->cache.blocks(step.layer_);
    tile.out = out[item.first_row] + item.first_head * shape.value_size;
    tile.out_stride = out.stride;
    tile.q = q[item.first_row] + item.first_head * shape.head_size;
    tile.q_stride = q.stride;
    return tile;
  }

  void rotate(const Item& item, cpu::AttentionTile& tile) {
    if (!step.at_.rotate_q) return;
    const int64_t width = tile.heads * shape.head_size;
    for (int64_t t = 0; t < tile.tokens; ++t) {
      float* row = scratch + t * width;
      std::memcpy(row, tile.q + t * tile.q_stride, static_cast<size_t>(width) * sizeof(float));
      const float* angles = pass.view(step.at_.rotate_q->table)[item.first_row + t];
      rotate_row(*step.kernels_.rows, *step.at_.rotate_q, angles, row, tile.heads);
    }
    tile.q = scratch;
    tile.q_stride = width;
  }

  // The blocks as the token of a tree sees them: its ancestors at their positions behind the committed slots.
  const std::byte* const* gather(const Item& item) {
    const Piece& piece = *item.piece;
    TreeScratch& tree = pass.tree_scratch[static_cast<size_t>(thread)];
    const KvCache& cache = piece.sequence->cache;
    const int64_t base = piece.first_slot, first = base / kCacheBlock;
    const auto target = [&](int64_t slot) {
      return tree.blocks.data() + (slot / kCacheBlock - first) * shape.block_bytes();
    };
    const auto copy = [&](int64_t from, int64_t to, int64_t count) {
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        kernels().copy_slots(shape, head, cache.block(step.layer_, from / kCacheBlock), from % kCacheBlock,
                             target(to), to % kCacheBlock, count);
      }
    };
    if (gathered != &piece) {
      gathered = &piece;
      std::copy_n(cache.blocks(step.layer_), first, tree.table.begin());
      const int64_t last = (base + piece.rows - 1) / kCacheBlock;
      for (int64_t b = first; b <= last; ++b) tree.table[static_cast<size_t>(b)] = target(b * kCacheBlock);
      if (base % kCacheBlock != 0) copy(first * kCacheBlock, first * kCacheBlock, base % kCacheBlock);
    }
    for (int64_t row = item.first_row, depth = pass.positions[row] - base; depth >= 0; --depth) {
      copy(base + row - piece.first_row, base + depth, 1);
      row = piece.first_row + pass.parents[row];
    }
    return tree.table.data();
  }

  void attend(const Item& item) {
    cpu::AttentionTile tile = tile_of(item);
    if (!item.piece->tree) {
      rotate(item, tile);
      kernels().attend(shape, tile, kernel_scratch());
      return;
    }
    const int64_t most = step.tile_heads();
    for (int64_t h = 0; h < shape.heads;) {
      cpu::AttentionTile part = tile;
      part.heads = std::min(most, shape.group() - h % shape.group());
      part.first_head = h;
      part.q = tile.q + h * shape.head_size;
      part.out = tile.out + h * shape.value_size;
      rotate(item, part);
      kernels().attend(shape, part, kernel_scratch());
      h += part.heads;
    }
  }
};

void AttentionStep::run(const Pass& pass, int thread) const {
  Run run(*this, pass, thread);
  if (!at_.q.defined()) return run.append_all();
  bool single_rows = true, any_tree = false;
  int64_t items = 0, longest = 0;
  for (const Piece& piece : pass.pieces) {
    single_rows = single_rows && piece.rows == 1 && !piece.tree;
    any_tree = any_tree || piece.tree;
    longest = std::max(longest, piece.first_slot + piece.rows);
  }
  for_each_item(pass, [&](int64_t, const Item&) { ++items; });
  const bool split =
      !any_tree && pass.threads > 1 && items < 2 * pass.threads && longest > 2 * kAttentionSpan;
  const auto mine = [&](int64_t index) { return index % pass.threads == thread; };

  if (single_rows && !split && shape_.group() <= kAttentionRows) {
    // One item alone reads what a token appends for a KV head, so that nobody has to wait.
    for_each_item(pass, [&](int64_t index, const Item& item) {
      if (!mine(index)) return;
      run.append(*item.piece, item.first_row, item.first_head / shape_.group());
      run.attend(item);
    });
    return;
  }
  run.append_all();
  if (pass.threads > 1) pass.team->barrier();
  if (!split) {
    for_each_item(pass, [&](int64_t index, const Item& item) {
      if (mine(index)) run.attend(item);
    });
    return;
  }
  const int64_t state = cpu::AttentionScratch::state_floats(shape_);
  const int64_t item_states = (longest / kAttentionSpan + 2) * state;
  int64_t part = 0;
  for_each_item(pass, [&](int64_t index, const Item& item) {
    cpu::AttentionTile tile = run.tile_of(item);
    const cpu::SpanRange spans = cpu::spans_of(run.shape, tile);
    bool rotated = false;
    for (int64_t s = spans.first; s <= spans.last; ++s) {
      if (!mine(part++)) continue;
      if (!rotated) run.rotate(item, tile);
      rotated = true;
      kernels_.attention->attend_span(run.shape, tile, s,
                                      pass.attention_states + index * item_states + (s - spans.first) * state,
                                      run.kernel_scratch());
    }
  });
  pass.team->barrier();
  for_each_item(pass, [&](int64_t index, const Item& item) {
    if (!mine(index)) return;
    cpu::AttentionTile tile = run.tile_of(item);
    run.rotate(item, tile);  // the reference computes everything here
    const cpu::SpanRange spans = cpu::spans_of(run.shape, tile);
    kernels_.attention->finish(run.shape, tile, pass.attention_states + index * item_states, state,
                               spans.last - spans.first + 1);
  });
}

int64_t AttentionStep::bytes(const Pass& pass) const {
  cpu::AttentionShape shape = shape_;
  shape.cache_dtype = pass.cache_dtype;
  int64_t positions = 0;
  for (const Piece& piece : pass.pieces) {
    const int64_t all = piece.first_slot + piece.rows;
    positions += shape.window > 0 ? std::min(all, shape.window + piece.rows) : all;
  }
  return positions * shape.block_bytes() / kCacheBlock;
}

std::string AttentionStep::detail() const {
  return concat("layer ", layer_, ", ", shape_.heads, " heads, ", shape_.kv_heads, " KV heads of ",
                shape_.head_size, shape_.window > 0 ? concat(", window ", shape_.window) : "",
                at_.rotate_q ? ", rotates q" : "", at_.rotate_k ? ", rotates k" : "");
}

}  // namespace quern::runtime
