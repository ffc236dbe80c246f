#include "calibrate/windows.h"

#include "ir/error.h"

namespace quern::calibrate {

void WindowProtocol::check() const {
  if (context < 1)
    throw_error(ErrorCode::InvalidArgument, "a context of ", context, " tokens; it must hold at least 1");
  if (step() < 1 || step() > context) {
    throw_error(ErrorCode::InvalidArgument, "a stride of ", stride, " tokens does not fit a context of ",
                context, "; it must lie between 1 and the context");
  }
}

std::string WindowProtocol::describe() const {
  if (step() == context) {
    return concat("non-overlapping windows of ", context,
                  " tokens, each scored on its own, the next token of every position counted");
  }
  return concat(
      "windows of ", context, " tokens, ", step(),
      " apart, each scored on its own, the next token of every position counted that the window before "
      "did not count");
}

std::vector<Window> cut_windows(int64_t tokens, const WindowProtocol& protocol) {
  protocol.check();
  if (tokens < 2) return {};
  const int64_t targets = tokens - 1;
  if (targets < protocol.context) return {{.begin = 0, .length = targets, .first = 0}};
  std::vector<Window> windows;
  for (int64_t begin = 0; begin + protocol.context <= targets; begin += protocol.step()) {
    windows.push_back({.begin = begin,
                       .length = protocol.context,
                       .first = begin == 0 ? 0 : protocol.context - protocol.step()});
  }
  return windows;
}

}  // namespace quern::calibrate
