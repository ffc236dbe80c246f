// Sequences that lose tokens in their middle, so that a text can go on beyond the model's context.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/decoder/sequence.h"
#include "runtime/decoder/session.h"

namespace quern::runtime {

// Why the session's sequences can't lose tokens but at their end; empty: they can. Positions must serve for
// nothing but turning queries and keys (Su et al., RoFormer, 2021), or biases by distance, or nothing at all;
// turned keys must be kept as floats, since integers would be rounded a second time.
std::string fixed_positions(const Session& session);

// Takes `count` tokens from place `first` on out of the sequence. Those behind them move up: their values
// stay as they are, their keys are turned on to the new positions, so that what is appended sees the kept
// keys and values at consecutive positions (Xiao et al., Efficient Streaming Language Models with Attention
// Sinks, 2024). That is not what a prefill of the remaining tokens would give: they were computed with the
// others in sight. Such a sequence can't be kept in a PrefixCache or a file.
//
// False, and nothing is done, where positions are fixed or a sliding window has passed what the next token
// would look back to. Throws Error{InvalidArgument} for a place beyond the sequence or an undecided tree,
// Error{OutOfMemory} where shared blocks would have to be copied; the sequence is then as it was.
bool remove_tokens(const Session& session, Sequence& sequence, int64_t first, int64_t count);

}  // namespace quern::runtime
