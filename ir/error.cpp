#include "ir/error.h"

#include <algorithm>

namespace quern {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::InvalidModel:
      return "InvalidModel";
    case ErrorCode::Unsupported:
      return "Unsupported";
    case ErrorCode::InvalidArgument:
      return "InvalidArgument";
    case ErrorCode::BadData:
      return "BadData";
    case ErrorCode::Io:
      return "Io";
    case ErrorCode::Corrupt:
      return "Corrupt";
    case ErrorCode::OutOfMemory:
      return "OutOfMemory";
    case ErrorCode::Internal:
      return "Internal";
  }
  return "Internal";
}

namespace {

// Names come from files: a message must stay one line and must not play tricks on a terminal.
std::string printable(std::string text) {
  if (std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }))
    return text;
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7F) {
      result += c;
    } else {
      result += {'\\', 'x', "0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
    }
  }
  return result;
}

}  // namespace

Error::Error(ErrorCode code, std::string message)
    : code_(code), message_(printable(std::move(message))), text_(message_) {}

Error& Error::add_context(std::string frame) {
  std::string shown = printable(std::move(frame));
  // "importing node 'x'" tells nothing new of what is said of node 'x' already.
  const size_t verb = shown.find(' ');
  if (verb != std::string::npos && text_.find(shown.substr(verb + 1)) != std::string::npos) return *this;
  frames_.push_back(std::move(shown));
  text_ = message_ + " (";
  for (size_t i = 0; i < frames_.size(); ++i) {
    text_ += (i == 0 ? "while " : ", while ") + frames_[i];
  }
  text_ += ")";
  return *this;
}

}  // namespace quern
