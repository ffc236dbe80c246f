// Texts that go on beyond the context.
#pragma once

#include <cstdint>

#include "runtime/decoder/session.h"
#include "runtime/generate/strategy.h"

namespace quern::runtime {

// What becomes of a sequence that loses tokens.
enum class ShiftWay : uint8_t {
  Move,       // keys and values stay, at new positions: remove_tokens(). Costs next to nothing.
  Recompute,  // they are those of a prefill of what remains: where positions are fixed
};

// When a sequence fills the session's context, its first `keep` tokens stay, and of the others the older half
// goes (Xiao et al., Efficient Streaming Language Models with Attention Sinks, 2024, for what stays; halves
// as llama.cpp's context shift has them). A token that moves is among those that go next, so that its key is
// turned on once.
class ContextShift {
 public:
  // Throws Error{InvalidArgument} where `keep` leaves nothing to give up.
  ContextShift(Session& session, int64_t keep);

  ShiftWay way() const { return way_; }
  bool is_full(const Sequence& sequence) const { return context_ > 0 && sequence.size() >= context_; }
  int64_t keep() const { return keep_; }
  // Tokens that go each time.
  int64_t dropped() const { return (context_ - keep_) / 2; }

  // Shifts a stream whose sequence is full: sequence and tokens. By Move the sequence is complete again; by
  // Recompute it has the tokens that stay, or fewer, and what else it should have is to be appended. Throws
  // Error{OutOfMemory} as remove_tokens() does; nothing has changed then.
  ShiftWay shift(GenerationStream& stream) const;

 private:
  Session& session_;
  int64_t context_, keep_;
  ShiftWay way_;
};

}  // namespace quern::runtime
