#include "cli/console.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "ir/error.h"

namespace quern::cli {
namespace {

[[noreturn]] void output_failed(int error) {
  if (error == EPIPE) throw BrokenPipe();
  throw_error(ErrorCode::Io, "cannot write to standard output: ", std::strerror(error));
}

void error_line(std::string_view line) {
  const std::string text = std::string(line) + "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace

void Console::print(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) output_failed(errno);
}

void Console::print_json(const nlohmann::ordered_json& object) {
  print(object.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void Console::flush() {
  errno = 0;
  if (std::fflush(stdout) != 0) output_failed(errno);
}

void Console::note(std::string_view line) {
  if (!quiet()) error_line(line);
}

void Console::warn(std::string_view line) {
  error_line(styled("quern: warning:", Style::Yellow, Stream::Err) + " " + one_line(line));
}

void Console::summary(std::string_view text) {
  if (!quiet() && !json()) print(text);
}

void print_error(std::string_view message) {
  error_line(styled("quern:", Style::Red, Stream::Err) + " " + one_line(message));
}

std::string one_line(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == '\n') {
      result += "\\n";
    } else if (byte == '\t') {
      result += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      constexpr char kDigits[] = "0123456789abcdef";
      result += "\\x";
      result += kDigits[byte >> 4];
      result += kDigits[byte & 15];
    } else {
      result += c;
    }
  }
  return result;
}

}  // namespace quern::cli
