#include "runtime/cache/block_pool.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "ir/error.h"

namespace quern::runtime {
namespace {

constexpr int64_t kSlabBytes = 4 << 20;
constexpr int64_t kSlabBlocks = 256;
constexpr std::align_val_t kAlignment{64};

}  // namespace

void BlockPool::Free::operator()(std::byte* p) const {
  ::operator delete(p, kAlignment);
}

BlockPool::BlockPool(int64_t limit) : limit_(limit) {}

int BlockPool::add_kind(int64_t bytes) {
  bytes = (bytes + 63) / 64 * 64;
  for (size_t i = 0; i < kinds_.size(); ++i) {
    if (kinds_[i].bytes == bytes) return static_cast<int>(i);
  }
  kinds_.push_back({.bytes = bytes});
  return static_cast<int>(kinds_.size()) - 1;
}

void BlockPool::grow(int kind) {
  Kind& k = kinds_[static_cast<size_t>(kind)];
  int64_t count = std::clamp<int64_t>(kSlabBytes / k.bytes, 1, kSlabBlocks);
  if (limit_ > 0) count = std::min(count, std::max<int64_t>(1, (limit_ - in_use_) / k.bytes));
  try {
    std::unique_ptr<std::byte, Free> slab(
        static_cast<std::byte*>(::operator new(static_cast<size_t>(count * k.bytes), kAlignment)));
    auto headers = std::make_unique<CacheBlock[]>(static_cast<size_t>(count));
    k.free.reserve(k.free.size() + static_cast<size_t>(count));
    slabs_.reserve(slabs_.size() + 1);
    headers_.reserve(headers_.size() + 1);
    // The last one first, so that blocks are handed out in the order of their addresses.
    for (int64_t i = count - 1; i >= 0; --i) {
      headers[static_cast<size_t>(i)] = {.data = slab.get() + i * k.bytes, .kind = kind};
      k.free.push_back(&headers[static_cast<size_t>(i)]);
    }
    slabs_.push_back(std::move(slab));
    headers_.push_back(std::move(headers));
  } catch (const std::bad_alloc&) {
    throw_error(ErrorCode::OutOfMemory, "no memory for keys and values: ", in_use_, " bytes are in use, ",
                count * k.bytes, " more were wanted");
  }
}

CacheBlock* BlockPool::allocate(int kind) {
  Kind& k = kinds_[static_cast<size_t>(kind)];
  if (!has_room(k.bytes)) {
    throw_error(ErrorCode::OutOfMemory, "keys and values fill the cache memory of ", limit_, " bytes (",
                in_use_, " in use, ", k.bytes,
                " more wanted): raise the limit, or use fewer or shorter sequences");
  }
  if (k.free.empty()) grow(kind);
  CacheBlock* block = k.free.back();
  k.free.pop_back();
  block->references = 1;
  in_use_ += k.bytes;
  peak_ = std::max(peak_, in_use_);
  return block;
}

CacheBlock* BlockPool::adopt(int kind, const std::byte* data, std::shared_ptr<const void> owner) {
  if (owners_.empty() || owners_.back() != owner) owners_.push_back(std::move(owner));
  // One reference is the pool's own: the block is never anyone's alone, so nobody writes into it, and it is
  // never free.
  adopted_.push_back({.data = const_cast<std::byte*>(data), .references = 2, .kind = kind});
  return &adopted_.back();
}

void BlockPool::release(CacheBlock* block) {
  if (--block->references > 0) return;
  Kind& k = kinds_[static_cast<size_t>(block->kind)];
  in_use_ -= k.bytes;
  // Never beyond what grow() reserved.
  k.free.push_back(block);
}

CacheBlock* BlockPool::make_exclusive(CacheBlock* block) {
  if (block->references == 1) return block;
  CacheBlock* copy = allocate(block->kind);
  std::memcpy(copy->data, block->data, static_cast<size_t>(bytes(block->kind)));
  release(block);
  return copy;
}

}  // namespace quern::runtime
