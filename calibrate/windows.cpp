#include "calibrate/windows.h"

#include <algorithm>

#include "ir/error.h"

namespace quern::calibrate {

void WindowProtocol::check() const {
  if (context < 1)
    throw_error(ErrorCode::InvalidArgument, "a context of ", context, " tokens; it must hold at least 1");
  if (opening < 0 || room() < 1) {
    throw_error(ErrorCode::InvalidArgument, "a context of ", context, " tokens; the ", opening,
                " that the tokenizer puts before a text leave no room in it");
  }
  if (stride < 0 || stride > context) {
    throw_error(ErrorCode::InvalidArgument, "a stride of ", stride, " tokens does not fit a context of ",
                context, "; it must lie between 1 and the context");
  }
}

std::string WindowProtocol::describe() const {
  const std::string begun =
      opening == 0 ? ""
                   : concat(", each begun with the ", opening, opening == 1 ? " token" : " tokens",
                            " that the tokenizer puts before a text");
  if (step() == room()) {
    return concat("non-overlapping windows of ", context, " tokens", begun,
                  ", each scored on its own, the next token of every position counted",
                  opening == 0 ? "" : " that stands in the text");
  }
  return concat("windows of ", context, " tokens, ", step(), " apart", begun,
                ", each scored on its own, the next token of every position counted that the window before "
                "did not count");
}

std::vector<Window> cut_windows(int64_t tokens, const WindowProtocol& protocol) {
  protocol.check();
  if (tokens < 2) return {};
  const int64_t targets = tokens - 1;
  const int64_t opening = protocol.opening;
  // The opening's last token tells the text's first.
  Window window{
      .begin = 0, .length = std::min(targets, protocol.context), .first = std::max<int64_t>(0, opening - 1)};
  if (window.scored() < 1) return {};
  std::vector<Window> windows = {window};
  for (int64_t begin = opening + protocol.step(); begin + protocol.room() <= targets;
       begin += protocol.step()) {
    windows.push_back({.begin = begin,
                       .length = protocol.context,
                       .first = protocol.context - protocol.step(),
                       .opening = opening});
  }
  return windows;
}

}  // namespace quern::calibrate
