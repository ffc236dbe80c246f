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
