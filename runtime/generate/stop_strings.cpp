#include "runtime/generate/stop_strings.h"

#include <algorithm>

#include "ir/error.h"

namespace quern::runtime {

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
  for (const std::string& string : strings_) {
    if (string.empty())
      throw_error(ErrorCode::InvalidArgument, "a stop string is empty: it would end every text");
  }
}

// How much of the end of `pending_` could be the beginning of a stop string.
size_t StopStrings::held_length() const {
  size_t held = 0;
  for (const std::string& string : strings_) {
    for (size_t length = std::min(string.size() - 1, pending_.size()); length > held; --length) {
      if (std::string_view(pending_).ends_with(std::string_view(string).substr(0, length))) held = length;
    }
  }
  return held;
}

std::string StopStrings::push(std::string_view text) {
  if (stopped()) return {};
  pending_ += text;
  size_t first = std::string::npos;
  for (const std::string& string : strings_) {
    const size_t found = pending_.find(string);
    if (found < first) {
      first = found;
      met_ = string;
    }
  }
  const size_t ready = first != std::string::npos ? first : pending_.size() - held_length();
  std::string out = pending_.substr(0, ready);
  pending_ = stopped() ? std::string() : pending_.substr(ready);
  return out;
}

std::string StopStrings::finish() {
  std::string rest;
  rest.swap(pending_);
  return rest;
}

}  // namespace quern::runtime
