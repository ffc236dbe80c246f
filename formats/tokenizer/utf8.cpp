#include "formats/tokenizer/utf8.h"

#include <cstring>

namespace quern::tokenizer {
namespace {

// Bytes allowed as the second byte after `lead` (Unicode table 3-7).
struct SecondByte {
  unsigned char first = 0x80;
  unsigned char last = 0xBF;
};

SecondByte second_byte(unsigned char lead) {
  switch (lead) {
    case 0xE0:
      return {0xA0, 0xBF};
    case 0xED:
      return {0x80, 0x9F};
    case 0xF0:
      return {0x90, 0xBF};
    case 0xF4:
      return {0x80, 0x8F};
    default:
      return {};
  }
}

size_t ascii_prefix(std::string_view text) {
  size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + at, 8);
    if ((word & 0x8080808080808080U) != 0) break;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

}  // namespace

Utf8Scan scan_utf8(std::string_view text) {
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {1, false, false};
  const size_t length = utf8_length(text[0]);
  const SecondByte second = second_byte(lead);
  for (size_t at = 1; at < length; ++at) {
    if (at == text.size()) return {at, false, true};
    const bool fits = at == 1 ? byte(1) >= second.first && byte(1) <= second.last : (byte(at) & 0xC0) == 0x80;
    if (!fits) return {at, false, false};
  }
  return {length, true, false};
}

bool is_valid_utf8(std::string_view text) {
  while (true) {
    text.remove_prefix(ascii_prefix(text));
    if (text.empty()) return true;
    const Utf8Scan scan = scan_utf8(text);
    if (!scan.valid) return false;
    text.remove_prefix(scan.length);
  }
}

std::string to_valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Scan scan = scan_utf8(text);
    out.append(scan.valid ? text.substr(0, scan.length) : kReplacementUtf8);
    text.remove_prefix(scan.length);
  }
  return out;
}

}  // namespace quern::tokenizer
