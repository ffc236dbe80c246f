#include "runtime/cache/kv_cache.h"

#include <algorithm>
#include <utility>

namespace quern::runtime {
namespace {

int64_t blocks_for(int64_t positions) {
  return (positions + KvCache::kBlock - 1) / KvCache::kBlock;
}

}  // namespace

// Before a block is taken, so that a failure here can't leak it.
void KvCache::Table::make_room() {
  if (blocks.size() < blocks.capacity() && data.size() < data.capacity()) return;
  blocks.reserve(std::max<size_t>(16, 2 * blocks.size()));
  data.reserve(blocks.capacity());
}

KvCache::KvCache(BlockPool& pool, const std::vector<CacheLayer>& layers)
    : pool_(pool), layers_(layers), tables_(layers.size()) {}

KvCache::~KvCache() {
  shrink(0);
}

KvCache::KvCache(const KvCache& other)
    : pool_(other.pool_),
      layers_(other.layers_),
      tables_(other.tables_),
      count_(other.count_),
      size_(other.size_) {
  for (const Table& table : tables_) {
    for (CacheBlock* block : table.blocks) {
      if (block != nullptr) pool_.retain(block);
    }
  }
}

void KvCache::shrink(int64_t count) {
  for (Table& table : tables_) {
    while (static_cast<int64_t>(table.blocks.size()) > count) {
      if (table.blocks.back() != nullptr) pool_.release(table.blocks.back());
      table.blocks.pop_back();
      table.data.pop_back();
    }
    table.passed = 0;
  }
  count_ = std::min(count_, count);
}

void KvCache::reserve(int64_t size) {
  const int64_t before = count_, wanted = blocks_for(size);
  const int64_t first_written = size_ / kBlock;
  try {
    for (size_t layer = 0; layer < tables_.size(); ++layer) {
      Table& table = tables_[layer];
      for (int64_t i = first_written; i < std::min(before, wanted); ++i) {
        CacheBlock* block = table.blocks[static_cast<size_t>(i)];
        table.set(i, block != nullptr ? pool_.make_exclusive(block) : pool_.allocate(layers_[layer].kind));
      }
      while (static_cast<int64_t>(table.blocks.size()) < wanted) {
        table.make_room();
        CacheBlock* block = pool_.allocate(layers_[layer].kind);
        table.blocks.push_back(block);
        table.data.push_back(block->data);
      }
    }
    count_ = std::max(before, wanted);
  } catch (...) {
    shrink(before);
    throw;
  }
}

bool KvCache::can_truncate(int64_t size) const {
  for (size_t layer = 0; layer < tables_.size(); ++layer) {
    const int64_t window = layers_[layer].window;
    if (window == 0) continue;
    // The next token, at position `size`, sees positions from size - window + 1 on.
    const int64_t oldest = std::max<int64_t>(0, size - window + 1);
    for (int64_t i = oldest / kBlock; i < blocks_for(size); ++i) {
      if (tables_[layer].blocks[static_cast<size_t>(i)] == nullptr) return false;
    }
  }
  return true;
}

void KvCache::truncate(int64_t size) {
  size_ = size;
  shrink(blocks_for(size));
}

bool KvCache::can_remove(int64_t first, int64_t count) const {
  const int64_t size = size_ - count;
  for (size_t layer = 0; layer < tables_.size(); ++layer) {
    const int64_t window = layers_[layer].window;
    if (window == 0) continue;
    // Whole blocks: what comes from two of which one is gone is gone, too.
    int64_t position = std::max<int64_t>(0, size - window + 1) / kBlock * kBlock;
    while (position < size) {
      const int64_t source = position < first ? position : position + count;
      if (tables_[layer].blocks[static_cast<size_t>(source / kBlock)] == nullptr) return false;
      const int64_t next = position + kBlock - source % kBlock;
      position = position < first ? std::min(next, first) : next;
    }
  }
  return true;
}

// Blocks that positions move into become this cache's alone.
void KvCache::own_targets(int64_t first, int64_t count) {
  std::vector<std::pair<size_t, int64_t>> added;
  try {
    for (size_t layer = 0; layer < tables_.size(); ++layer) {
      Table& table = tables_[layer];
      for (int64_t i = first / kBlock; i < blocks_for(size_ - count); ++i) {
        CacheBlock* block = table.blocks[static_cast<size_t>(i)];
        if (block == nullptr) added.emplace_back(layer, i);
        table.set(i, block != nullptr ? pool_.make_exclusive(block) : pool_.allocate(layers_[layer].kind));
      }
    }
  } catch (...) {
    for (const auto& [layer, i] : added) {
      CacheBlock* block = tables_[layer].blocks[static_cast<size_t>(i)];
      if (block != nullptr) pool_.release(block);
      tables_[layer].set(i, nullptr);
    }
    throw;
  }
}

// Fills one block; false where a part of what belongs there is gone.
bool KvCache::move_into(size_t layer, int64_t target, int64_t first, int64_t count,
                        const std::function<void(const SlotMove&)>& move) {
  const Table& table = tables_[layer];
  const int64_t end = std::min(size_ - count, (target + 1) * kBlock);
  for (int64_t position = std::max(first, target * kBlock); position < end;) {
    const int64_t source = position + count;
    const int64_t slots = std::min(kBlock - source % kBlock, end - position);
    const std::byte* from = table.data[static_cast<size_t>(source / kBlock)];
    if (from == nullptr) return false;
    move({.layer = static_cast<int>(layer),
          .from = from,
          .from_slot = source % kBlock,
          .to = table.data[static_cast<size_t>(target)],
          .to_slot = position % kBlock,
          .count = slots});
    position += slots;
  }
  return true;
}

void KvCache::remove(int64_t first, int64_t count, const std::function<void(const SlotMove&)>& move) {
  const int64_t from = first / kBlock, to = blocks_for(size_ - count);
  std::vector<char> kept_part(tables_.size());  // of the first block: what stays in front
  for (size_t layer = 0; layer < tables_.size() && from < to; ++layer) {
    kept_part[layer] = first % kBlock == 0 || tables_[layer].blocks[static_cast<size_t>(from)] != nullptr;
  }
  own_targets(first, count);
  for (size_t layer = 0; layer < tables_.size(); ++layer) {
    Table& table = tables_[layer];
    for (int64_t i = from; i < to; ++i) {
      const bool whole = move_into(layer, i, first, count, move) && (i > from || kept_part[layer] != 0);
      if (whole) continue;
      pool_.release(table.blocks[static_cast<size_t>(i)]);
      table.set(i, nullptr);
    }
  }
  truncate(size_ - count);
}

void KvCache::adopt(int64_t size, const std::vector<std::vector<CacheBlock*>>& blocks) {
  for (size_t layer = 0; layer < tables_.size(); ++layer) {
    Table& table = tables_[layer];
    for (CacheBlock* block : blocks[layer]) {
      table.blocks.push_back(block);
      table.data.push_back(block != nullptr ? block->data : nullptr);
    }
  }
  count_ = blocks_for(size);
  size_ = size;
}

void KvCache::drop_passed(int64_t keep) {
  for (size_t layer = 0; layer < tables_.size(); ++layer) {
    const int64_t window = layers_[layer].window;
    if (window == 0) continue;
    Table& table = tables_[layer];
    const int64_t passed = (size_ - window - kSlack) / kBlock;
    if (passed <= table.passed) continue;
    table.passed = passed;
    // What is before the window now, save what the shorter sequence sees or holds partly.
    const int64_t kept_from = std::max<int64_t>(0, keep - window - kSlack) / kBlock;
    const int64_t kept_to = blocks_for(keep);
    for (int64_t i = 0; i < std::min(passed, count_); ++i) {
      if (i >= kept_from && i < kept_to) continue;
      CacheBlock* block = table.blocks[static_cast<size_t>(i)];
      if (block == nullptr) continue;
      pool_.release(block);
      table.set(i, nullptr);
    }
  }
}

}  // namespace quern::runtime
