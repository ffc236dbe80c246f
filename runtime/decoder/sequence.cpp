#include "runtime/decoder/sequence.h"

#include <algorithm>

#include "ir/error.h"
#include "runtime/decoder/sequence_state.h"

namespace quern::runtime {
namespace {

SequenceState& checked(const std::unique_ptr<SequenceState>& state) {
  if (state == nullptr) {
    throw_error(ErrorCode::InvalidArgument, "an empty sequence: make one by Session::new_sequence()");
  }
  return *state;
}

// Moves what lies at `from` to the earlier position `to`, in all layers.
void move_position(SequenceState& state, int64_t from, int64_t to) {
  constexpr int64_t kBlock = KvCache::kBlock;
  const CacheStore& store = *state.store;
  for (size_t layer = 0; layer < store.shapes.size(); ++layer) {
    const std::byte* source = state.cache.block(static_cast<int>(layer), from / kBlock);
    std::byte* target = state.cache.block(static_cast<int>(layer), to / kBlock);
    for (int64_t head = 0; head < store.shapes[layer].kv_heads; ++head) {
      store.kernels->copy_slots(store.shapes[layer], head, source, from % kBlock, target, to % kBlock, 1);
    }
  }
}

}  // namespace

Sequence::Sequence(std::unique_ptr<SequenceState> state) : state_(std::move(state)) {}
Sequence::Sequence() = default;
Sequence::~Sequence() = default;
Sequence::Sequence(Sequence&&) noexcept = default;
Sequence& Sequence::operator=(Sequence&&) noexcept = default;

int64_t Sequence::size() const {
  return state_ == nullptr ? 0 : state_->size();
}

std::span<const int64_t> Sequence::tokens() const {
  return checked(state_).tokens;
}

void Sequence::rewind(int64_t count) {
  SequenceState& state = checked(state_);
  if (count < 0 || count > state.size()) {
    throw_error(ErrorCode::InvalidArgument, "a sequence of ", state.size(), " tokens can't go back by ",
                count);
  }
  const int64_t size = state.size() - count;
  if (size > state.tree_base()) {
    throw_error(ErrorCode::InvalidArgument, "going back by ", count, " cuts an undecided tree of ",
                state.tree_parents.size(), " tokens: call Sequence::keep(), or go back by all of it");
  }
  if (!state.cache.can_truncate(size)) {
    throw_error(ErrorCode::InvalidArgument, "going back by ", count, " tokens to ", size,
                ": the sliding window has passed what the sequence would need");
  }
  state.cache.truncate(size);
  state.tokens.resize(static_cast<size_t>(size));
  state.tree_parents.clear();
}

Sequence Sequence::fork() const {
  const SequenceState& state = checked(state_);
  if (!state.tree_parents.empty()) {
    throw_error(ErrorCode::InvalidArgument,
                "a sequence with an undecided tree can't fork: call Sequence::keep()");
  }
  auto copy = std::make_unique<SequenceState>(state);
  copy->last_run = 0;
  return Sequence(std::move(copy));
}

void Sequence::keep(std::span<const int32_t> path) {
  SequenceState& state = checked(state_);
  const int64_t base = state.tree_base();
  int32_t parent = -1;
  for (const int32_t node : path) {
    if (node < 0 || static_cast<size_t>(node) >= state.tree_parents.size() ||
        state.tree_parents[static_cast<size_t>(node)] != parent) {
      throw_error(ErrorCode::InvalidArgument, "token ", node, " does not follow token ", parent,
                  " in the last tree of ", state.tree_parents.size(), " tokens");
    }
    parent = node;
  }
  int64_t size = base;
  for (const int32_t node : path) {
    // A path ascends: what moves down never lands on what is still to be moved.
    if (base + node != size) {
      move_position(state, base + node, size);
      state.tokens[static_cast<size_t>(size)] = state.tokens[static_cast<size_t>(base + node)];
    }
    ++size;
  }
  state.tree_parents.clear();
  state.cache.truncate(size);
  state.tokens.resize(static_cast<size_t>(size));
}

bool Sequence::has_undecided_tree() const {
  return state_ != nullptr && !state_->tree_parents.empty();
}

}  // namespace quern::runtime
