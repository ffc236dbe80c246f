#include "ir/error.h"

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

Error::Error(ErrorCode code, std::string message)
    : code_(code), message_(std::move(message)), text_(message_) {}

Error& Error::add_context(std::string frame) {
  frames_.push_back(std::move(frame));
  text_ = message_ + " (";
  for (size_t i = 0; i < frames_.size(); ++i) {
    text_ += (i == 0 ? "while " : ", while ") + frames_[i];
  }
  text_ += ")";
  return *this;
}

}  // namespace quern
