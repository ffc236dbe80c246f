// Keys and values of texts that were decoded before, for texts that begin alike.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "runtime/decoder/sequence.h"
#include "runtime/decoder/session.h"

namespace quern::runtime {

struct PrefixCacheOptions {
  int64_t memory = 0;   // bytes of keys and values that may be kept; 0: no limit but the session's
  double lifetime = 0;  // seconds after the last use; 0: for ever
  // Seconds since any point; empty: the steady clock.
  std::function<double()> clock = {};
};

struct PrefixCacheStatistics {
  int64_t lookups = 0;
  int64_t hits = 0;        // lookups that found something
  int64_t tokens = 0;      // asked for, in all lookups
  int64_t hit_tokens = 0;  // of them, those that were there
  int64_t kept = 0;        // texts taken in
  int64_t evicted = 0;     // given up for want of memory
  int64_t expired = 0;     // given up for their age
  double hit_rate() const {
    return tokens > 0 ? static_cast<double>(hit_tokens) / static_cast<double>(tokens) : 0;
  }
  PrefixCacheStatistics& operator+=(const PrefixCacheStatistics& other);
};

// Holds forks of sequences, which share their blocks with the texts that go on from them, in a tree over
// chunks of a cache block's tokens. Found is the longest common beginning, to the token; the tokens
// themselves are compared, never a hash of them. Least recently used texts go first; what others begin with
// stays.
//
// It belongs to one session: model, precision and every option that changes the cache are the same by
// construction. Not thread-safe. A session that runs out of cache memory can be helped by evict().
class PrefixCache {
 public:
  // The session must outlive the cache.
  explicit PrefixCache(Session& session, const PrefixCacheOptions& options = {});
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // A sequence that holds the longest known beginning of `tokens`, but at most all of them save the last,
  // whose logits are wanted. An empty sequence where nothing is known.
  Sequence take(std::span<const int64_t> tokens);
  // How many tokens such a sequence would have; a sliding window may have passed some of them.
  int64_t known(std::span<const int64_t> tokens);
  // Keeps the first `size` tokens of a sequence; they must be final. Costs no copying of keys and values.
  // Throws Error{InvalidArgument} for more tokens than there are, or tokens that were moved
  // (remove_tokens()).
  void keep(const Sequence& sequence, int64_t size);

  // Gives up the least recently used text; false where there is none.
  bool evict();
  void clear();

  int64_t size() const { return static_cast<int64_t>(entries_.size()); }  // texts
  int64_t bytes() const;                                                  // of their whole blocks
  const PrefixCacheStatistics& statistics() const { return statistics_; }

 private:
  static constexpr int64_t kChunk = 64;  // tokens; as many as a block of keys and values has

  struct Node;
  struct Entry {
    Sequence sequence;
    Node* node = nullptr;  // of its last whole chunk
    double used = 0;       // when
    uint64_t tick = 0;
  };
  // A chunk of tokens behind those of its parent.
  struct Node {
    Node* parent = nullptr;
    std::vector<int64_t> tokens;
    std::vector<std::unique_ptr<Node>> children;
    std::vector<Entry*> entries;  // texts that go through this chunk, or end within the next
  };
  struct Match {
    Entry* entry = nullptr;
    int64_t length = 0;
  };
  Match find(std::span<const int64_t> tokens);
  Node* descend(std::span<const int64_t> tokens);
  Node* grow(std::span<const int64_t> tokens);
  void touch(Entry& entry);
  void drop(Entry& entry);
  void expire();

  Session& session_;
  PrefixCacheOptions options_;
  PrefixCacheStatistics statistics_;
  int64_t chunk_bytes_ = 0;
  int64_t chunks_ = 0;
  Node root_;
  std::map<uint64_t, std::unique_ptr<Entry>> entries_;  // by last use
  uint64_t ticks_ = 0;
};

}  // namespace quern::runtime
