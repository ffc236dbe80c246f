#include "runtime/prefix/prefix_cache.h"

#include <algorithm>
#include <chrono>

#include "ir/error.h"
#include "runtime/cpu/attention.h"
#include "runtime/decoder/sequence_state.h"

namespace quern::runtime {
namespace {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t common(std::span<const int64_t> a, std::span<const int64_t> b) {
  const size_t most = std::min(a.size(), b.size());
  const auto [at, other] = std::mismatch(a.begin(), a.begin() + static_cast<int64_t>(most), b.begin());
  return at - a.begin();
}

}  // namespace

PrefixCacheStatistics& PrefixCacheStatistics::operator+=(const PrefixCacheStatistics& other) {
  lookups += other.lookups;
  hits += other.hits;
  tokens += other.tokens;
  hit_tokens += other.hit_tokens;
  kept += other.kept;
  evicted += other.evicted;
  expired += other.expired;
  return *this;
}

PrefixCache::PrefixCache(Session& session, const PrefixCacheOptions& options)
    : session_(session), options_(options) {
  if (!options_.clock) options_.clock = steady_seconds;
  for (const CacheLayerShape& layer : session.program().traits().layers) {
    const cpu::AttentionShape shape = {.heads = layer.kv_heads,
                                       .kv_heads = layer.kv_heads,
                                       .head_size = layer.key_size,
                                       .value_size = layer.value_size,
                                       .cache_dtype = *session.options().cache_dtype};
    chunk_bytes_ += shape.block_bytes() * kChunk / cpu::kCacheBlock;
  }
}

PrefixCache::~PrefixCache() = default;

int64_t PrefixCache::bytes() const {
  return chunks_ * chunk_bytes_;
}

// The node of the last whole chunk of `tokens` that is known.
PrefixCache::Node* PrefixCache::descend(std::span<const int64_t> tokens) {
  Node* node = &root_;
  while (static_cast<int64_t>(tokens.size()) >= kChunk) {
    const std::span<const int64_t> chunk = tokens.first(kChunk);
    const auto child = std::find_if(node->children.begin(), node->children.end(), [&](const auto& c) {
      return std::equal(chunk.begin(), chunk.end(), c->tokens.begin());
    });
    if (child == node->children.end()) break;
    node = child->get();
    tokens = tokens.subspan(kChunk);
  }
  return node;
}

// The node of the last whole chunk of `tokens`, made where it is not there.
PrefixCache::Node* PrefixCache::grow(std::span<const int64_t> tokens) {
  Node* node = &root_;
  for (; static_cast<int64_t>(tokens.size()) >= kChunk; tokens = tokens.subspan(kChunk)) {
    Node* next = nullptr;
    for (const auto& child : node->children) {
      if (std::equal(child->tokens.begin(), child->tokens.end(), tokens.begin())) next = child.get();
    }
    if (next == nullptr) {
      auto made = std::make_unique<Node>();
      made->parent = node;
      made->tokens.assign(tokens.begin(), tokens.begin() + kChunk);
      next = made.get();
      node->children.push_back(std::move(made));
      ++chunks_;
    }
    node = next;
  }
  return node;
}

PrefixCache::Match PrefixCache::find(std::span<const int64_t> tokens) {
  Match best;
  for (Entry* entry : descend(tokens)->entries) {
    const int64_t length = common(entry->sequence.tokens(), tokens);
    // Of several the one used last, which is likely to stay.
    if (length > best.length ||
        (length == best.length && best.entry != nullptr && entry->tick > best.entry->tick)) {
      best = {entry, length};
    }
  }
  return best;
}

int64_t PrefixCache::known(std::span<const int64_t> tokens) {
  expire();
  return tokens.empty() ? 0 : find(tokens.first(tokens.size() - 1)).length;
}

Sequence PrefixCache::take(std::span<const int64_t> tokens) {
  expire();
  ++statistics_.lookups;
  statistics_.tokens += static_cast<int64_t>(tokens.size());
  if (tokens.empty()) return session_.new_sequence();
  const Match match = find(tokens.first(tokens.size() - 1));
  if (match.length == 0) return session_.new_sequence();
  Sequence sequence = match.entry->sequence.fork();
  try {
    sequence.rewind(sequence.size() - match.length);
  } catch (const Error& error) {
    // A sliding window has passed what the shorter text would need.
    if (error.code() != ErrorCode::InvalidArgument) throw;
    return session_.new_sequence();
  }
  touch(*match.entry);
  ++statistics_.hits;
  statistics_.hit_tokens += match.length;
  return sequence;
}

void PrefixCache::keep(const Sequence& sequence, int64_t size) {
  expire();
  if (size < 0 || size > sequence.size()) {
    throw_error(ErrorCode::InvalidArgument, "keeping ", size, " tokens of a sequence of ", sequence.size());
  }
  if (sequence && SequenceAccess::state(sequence).moved) {
    throw_error(
        ErrorCode::InvalidArgument,
        "a sequence that lost tokens of its middle can't be kept: its keys and values are not those of "
        "the tokens that remain");
  }
  const std::span<const int64_t> tokens = sequence.tokens().first(static_cast<size_t>(size));
  const Match known = find(tokens);
  if (known.length == size) {
    if (known.entry != nullptr) touch(*known.entry);
    return;
  }
  auto entry = std::make_unique<Entry>();
  entry->sequence = sequence.fork();
  entry->sequence.rewind(entry->sequence.size() - size);
  // A text that the new one goes on from says nothing more.
  if (known.entry != nullptr && known.length == known.entry->sequence.size()) drop(*known.entry);
  entry->node = grow(tokens);
  for (Node* node = entry->node; node != nullptr; node = node->parent) node->entries.push_back(entry.get());
  ++statistics_.kept;
  Entry& added = *entry;
  added.tick = ++ticks_;
  added.used = options_.clock();
  entries_.emplace(added.tick, std::move(entry));
  while (options_.memory > 0 && bytes() > options_.memory && evict()) {
  }
}

void PrefixCache::touch(Entry& entry) {
  auto moved = entries_.extract(entry.tick);
  entry.tick = moved.key() = ++ticks_;
  entry.used = options_.clock();
  entries_.insert(std::move(moved));
}

void PrefixCache::drop(Entry& entry) {
  for (Node* node = entry.node; node != nullptr;) {
    std::erase(node->entries, &entry);
    Node* parent = node->parent;
    if (node->entries.empty() && parent != nullptr) {
      std::erase_if(parent->children, [&](const auto& child) { return child.get() == node; });
      --chunks_;
    }
    node = parent;
  }
  entries_.erase(entry.tick);
}

bool PrefixCache::evict() {
  if (entries_.empty()) return false;
  drop(*entries_.begin()->second);
  ++statistics_.evicted;
  return true;
}

void PrefixCache::expire() {
  if (options_.lifetime <= 0) return;
  const double oldest = options_.clock() - options_.lifetime;
  while (!entries_.empty() && entries_.begin()->second->used < oldest) {
    drop(*entries_.begin()->second);
    ++statistics_.expired;
  }
}

void PrefixCache::clear() {
  while (!entries_.empty()) drop(*entries_.begin()->second);
}

}  // namespace quern::runtime
