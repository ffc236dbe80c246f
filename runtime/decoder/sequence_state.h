// What is behind a Sequence, and the memory that all sequences of a session share.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/cache/block_pool.h"
#include "runtime/cache/kv_cache.h"
#include "runtime/cpu/attention.h"
#include "runtime/decoder/sequence.h"

namespace quern::runtime {

struct CacheStore {
  explicit CacheStore(int64_t limit) : pool(limit) {}
  BlockPool pool;
  std::vector<CacheLayer> layers;
  std::vector<cpu::AttentionShape> shapes;  // of the layers: how their blocks are laid out
  const cpu::AttentionKernels* kernels = nullptr;
};

struct SequenceState {
  explicit SequenceState(std::shared_ptr<CacheStore> shared)
      : store(std::move(shared)), cache(store->pool, store->layers) {}

  std::shared_ptr<CacheStore> store;  // so that a sequence may even outlive its session
  KvCache cache;
  std::vector<int64_t> tokens;  // one for each position of the cache
  // An undecided tree: its tokens are the last tree_parents.size() of `tokens`, one slot each in that order.
  std::vector<int32_t> tree_parents;
  // Rotary frequencies for sequences beyond the original context are in use.
  bool long_rotary = false;
  // Tokens were taken out of its middle, and its keys and values are those of the longer text
  // (remove_tokens.h).
  bool moved = false;
  int64_t last_run = 0;  // number of the session's run that it was last part of

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  int64_t tree_base() const { return size() - static_cast<int64_t>(tree_parents.size()); }
};

// For what keeps sequences elsewhere than in a session.
class SequenceAccess {
 public:
  static SequenceState& state(const Sequence& sequence) { return *sequence.state_; }
};

}  // namespace quern::runtime
