// Memory for keys and values: equal pieces, shared by counting references.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace quern::runtime {

// One layer's keys and values of 64 positions. What it holds is the attention kernels' business.
struct CacheBlock {
  std::byte* data = nullptr;
  int32_t references = 0;
  int32_t kind = 0;
};

// Hands out blocks of a few sizes. Memory is taken from the system in larger pieces, given back when the pool
// goes. Not thread-safe.
class BlockPool {
 public:
  // `limit`: bytes of all blocks in use together; 0: none.
  explicit BlockPool(int64_t limit = 0);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // A kind of block; those of one size share it.
  int add_kind(int64_t bytes);

  // A block that the caller owns alone, aligned to 64 bytes, content undefined. Throws Error{OutOfMemory}
  // naming the limit.
  CacheBlock* allocate(int kind);
  // A block whose bytes are the caller's, as many as the kind has, read-only; `owner` keeps them alive and is
  // kept as long as the pool. Whoever is about to write into it gets a copy.
  CacheBlock* adopt(int kind, const std::byte* data, std::shared_ptr<const void> owner);
  void retain(CacheBlock* block) { ++block->references; }
  void release(CacheBlock* block);

  // A block of which the caller is the only owner with the same content; takes over the caller's reference.
  CacheBlock* make_exclusive(CacheBlock* block);

  int64_t bytes(int kind) const { return kinds_[static_cast<size_t>(kind)].bytes; }
  int64_t bytes_in_use() const { return in_use_; }
  int64_t peak_bytes() const { return peak_; }
  int64_t limit() const { return limit_; }
  // Whether so many more bytes are within the limit.
  bool has_room(int64_t bytes) const { return limit_ == 0 || in_use_ + bytes <= limit_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  struct Kind {
    int64_t bytes = 0;
    std::vector<CacheBlock*> free;
  };
  void grow(int kind);

  int64_t limit_;
  int64_t in_use_ = 0;
  int64_t peak_ = 0;
  std::vector<Kind> kinds_;
  std::vector<std::unique_ptr<std::byte, Free>> slabs_;
  std::vector<std::unique_ptr<CacheBlock[]>> headers_;
  std::deque<CacheBlock> adopted_;
  std::vector<std::shared_ptr<const void>> owners_;
};

}  // namespace quern::runtime
