#include "runtime/generate/context_shift.h"

#include "ir/error.h"
#include "runtime/decoder/remove_tokens.h"

namespace quern::runtime {
namespace {

// As far as a sliding window lets it.
void go_back_to(Session& session, Sequence& sequence, int64_t size) {
  try {
    sequence.rewind(sequence.size() - size);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::InvalidArgument) throw;
    sequence = session.new_sequence();
  }
}

}  // namespace

ContextShift::ContextShift(Session& session, int64_t keep)
    : session_(session),
      context_(session.options().context),
      keep_(keep),
      way_(fixed_positions(session).empty() ? ShiftWay::Move : ShiftWay::Recompute) {
  if (context_ == 0) return;
  if (keep < 0 || keep > context_ - 2) {
    throw_error(ErrorCode::InvalidArgument, "keeping ", keep, " tokens of a context of ", context_,
                " leaves nothing to shift: at most ", context_ - 2, " can stay");
  }
}

ShiftWay ContextShift::shift(GenerationStream& stream) const {
  const bool moved = remove_tokens(session_, stream.sequence, keep_, dropped());
  if (!moved) go_back_to(session_, stream.sequence, keep_);
  stream.tokens.erase(stream.tokens.begin() + keep_, stream.tokens.begin() + keep_ + dropped());
  return moved ? ShiftWay::Move : ShiftWay::Recompute;
}

}  // namespace quern::runtime
