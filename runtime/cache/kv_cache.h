// The keys and values of one sequence: for each layer a table of blocks of 64 positions.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/cache/block_pool.h"

namespace quern::runtime {

struct CacheLayer {
  int kind = 0;        // of block (BlockPool::add_kind)
  int64_t window = 0;  // positions that attention looks back; 0: all
};

// Positions are absolute: position p of any layer lies in slot p % 64 of block p / 64. Copies share blocks; a
// block that two caches share is copied when one of them is about to write into it. Layers with a window give
// up blocks that lie wholly before it, but keep kSlack positions more than they need, so that short rewinds
// stay possible.
class KvCache {
 public:
  static constexpr int64_t kBlock = 64;
  static constexpr int64_t kSlack = 256;

  // `layers` must outlive the cache, as must the pool.
  KvCache(BlockPool& pool, const std::vector<CacheLayer>& layers);
  ~KvCache();
  KvCache(const KvCache& other);
  KvCache& operator=(const KvCache&) = delete;

  int64_t size() const { return size_; }

  // Makes room for positions size() .. size - 1: blocks for them exist and are this cache's alone. Throws
  // Error{OutOfMemory}; the content is then as before.
  void reserve(int64_t size);
  // Positions below `size` now hold something. At most what was reserved.
  void set_size(int64_t size) { size_ = size; }
  // Whether the positions that a sequence of this size looks back to are all here.
  bool can_truncate(int64_t size) const;
  // Forgets positions from `size` on, and what was reserved beyond.
  void truncate(int64_t size);
  // Takes positions first .. first + count - 1 out: what lies behind them moves down, slots of blocks by
  // `move`, and then stands as it was written, at new positions. Windows keep what they still had of it.
  // Throws Error{OutOfMemory} where blocks are shared and there is no room for copies; the content is then as
  // before.
  struct SlotMove {
    int layer;
    const std::byte* from;
    int64_t from_slot;
    std::byte* to;
    int64_t to_slot;
    int64_t count;  // from and to may be one block; to_slot is then the lower one
  };
  void remove(int64_t first, int64_t count, const std::function<void(const SlotMove&)>& move);
  // Whether remove() leaves all that the next token looks back to.
  bool can_remove(int64_t first, int64_t count) const;
  // Blocks of an empty cache, for `size` positions: of every layer as many as they need, null where given up.
  // Takes over the references.
  void adopt(int64_t size, const std::vector<std::vector<CacheBlock*>>& blocks);
  // Gives up what windows have passed. Nothing that a sequence of size `keep` or longer needs goes.
  void drop_passed(int64_t keep);

  // The blocks of a layer by position / 64, null where given up.
  const std::byte* const* blocks(int layer) const { return tables_[static_cast<size_t>(layer)].data.data(); }
  std::byte* block(int layer, int64_t index) const {
    return tables_[static_cast<size_t>(layer)].data[static_cast<size_t>(index)];
  }
  int64_t block_count() const { return count_; }

 private:
  struct Table {
    std::vector<std::byte*> data;  // what kernels read; data[i] is blocks[i]->data or null
    std::vector<CacheBlock*> blocks;
    int64_t passed = 0;  // blocks before this one have been looked at by drop_passed()
    void make_room();
    void set(int64_t i, CacheBlock* block) {
      blocks[static_cast<size_t>(i)] = block;
      data[static_cast<size_t>(i)] = block != nullptr ? block->data : nullptr;
    }
  };
  void shrink(int64_t count);
  void own_targets(int64_t first, int64_t count);
  bool move_into(size_t layer, int64_t target, int64_t first, int64_t count,
                 const std::function<void(const SlotMove&)>& move);

  BlockPool& pool_;
  const std::vector<CacheLayer>& layers_;
  std::vector<Table> tables_;
  int64_t count_ = 0;  // of blocks in every table
  int64_t size_ = 0;
};

}  // namespace quern::runtime
