// One text being decoded: its tokens and its keys and values.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace quern::runtime {

class Session;
struct SequenceState;

// A movable handle; the state lives in the session's cache and must not outlive the session. Like its session
// it is used by one thread at a time. Forks share what they have in common, block by block, until one of them
// writes.
class Sequence {
 public:
  Sequence();  // no sequence; assign one from Session::new_sequence()
  ~Sequence();
  Sequence(Sequence&&) noexcept;
  Sequence& operator=(Sequence&&) noexcept;

  // Tokens in the cache, those of an undecided tree included.
  int64_t size() const;
  std::span<const int64_t> tokens() const;

  // Forgets the last `count` tokens. Throws Error{InvalidArgument} if there are fewer, or if a sliding window
  // has already dropped what the shorter sequence would need.
  void rewind(int64_t count);
  // A second sequence with the same tokens. Costs no copying of keys and values.
  Sequence fork() const;

  // Decides a tree appended by the last run (SequenceStep::parents): keeps the tokens at these indices of the
  // step, each the parent of the next and the first a child of the sequence before, and forgets the others.
  // An empty path forgets all. Until then the sequence takes no other call but rewind() of the whole tree.
  // Throws Error{InvalidArgument} where `path` is no such path.
  void keep(std::span<const int32_t> path);
  bool has_undecided_tree() const;

  explicit operator bool() const { return state_ != nullptr; }

 private:
  friend class Session;
  friend class SequenceAccess;
  explicit Sequence(std::unique_ptr<SequenceState> state);
  std::unique_ptr<SequenceState> state_;
};

}  // namespace quern::runtime
