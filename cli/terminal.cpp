#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

namespace quern::cli {
namespace {

int descriptor(Stream stream) {
  return stream == Stream::Out ? STDOUT_FILENO : STDERR_FILENO;
}

bool wants_colours(Stream stream) {
  if (!is_terminal(stream)) return false;
  const char* refused = std::getenv("NO_COLOR");  // https://no-color.org
  if (refused != nullptr && *refused != '\0') return false;
  const char* term = std::getenv("TERM");
  return term == nullptr || std::string_view(term) != "dumb";
}

const char* code_of(Style style) {
  switch (style) {
    case Style::Bold:
      return "1";
    case Style::Dim:
      return "2";
    case Style::Red:
      return "31";
    case Style::Yellow:
      return "33";
    case Style::Green:
      return "32";
  }
  return "0";
}

}  // namespace

bool is_terminal(Stream stream) {
  return ::isatty(descriptor(stream)) == 1;
}

int terminal_width(Stream stream) {
  winsize size{};
  if (::ioctl(descriptor(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

std::string styled(std::string_view text, Style style, Stream stream) {
  if (text.empty() || !wants_colours(stream)) return std::string(text);
  return std::string("\033[") + code_of(style) + "m" + std::string(text) + "\033[0m";
}

size_t display_width(std::string_view text) {
  size_t width = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == 0x1B) {  // a colour: ESC [ ... m
      while (i < text.size() && text[i] != 'm') ++i;
      continue;
    }
    if ((byte & 0xC0) == 0x80) continue;  // within a character
    if (byte == 0xCC ||
        (byte == 0xCD && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xB0)) {
      continue;  // U+0300 to U+036F combine
    }
    ++width;
  }
  return width;
}

}  // namespace quern::cli
