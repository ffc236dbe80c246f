// The one exception type of the library.
#pragma once

#include <exception>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace quern {

enum class ErrorCode {
  InvalidModel,     // the graph breaks a rule of its format
  Unsupported,      // well-formed, but quern does not do it
  InvalidArgument,  // the caller asked for something that makes no sense
  BadData,          // calibration or validation data, prompts, images of tensors
  Io,               // the operating system refused a read or a write
  Corrupt,          // a file is truncated, or a checksum or magic does not match
  OutOfMemory,
  Internal,  // a bug in quern
};

// "InvalidModel", "Unsupported", ...
std::string_view to_string(ErrorCode code);

// Thrown by every room; the command line alone turns it into text and an exit status.
// what() reads "message (while frame0, while frame1, ...)", innermost frame first.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message);

  // Adds what was being done, from the inside outwards: "reading initializer 'w'", then "importing 'm.onnx'".
  // Left out where all but the first word of it is in what() already.
  Error& add_context(std::string frame);

  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::vector<std::string>& frames() const { return frames_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  ErrorCode code_;
  std::string message_;
  std::vector<std::string> frames_;
  std::string text_;
};

// concat("expected ", 3, " inputs"): the arguments streamed one after another.
template <class... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

// throw_error(ErrorCode::InvalidModel, "node '", name, "' ...")
template <class... Args>
[[noreturn]] void throw_error(ErrorCode code, const Args&... args) {
  throw Error(code, concat(args...));
}

// Runs `body`; an Error that leaves it gains the context `frame`.
template <class Body>
decltype(auto) with_context(const std::string& frame, Body&& body) {
  try {
    return body();
  } catch (Error& error) {
    error.add_context(frame);
    throw;
  }
}

}  // namespace quern
