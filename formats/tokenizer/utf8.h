// UTF-8 by code points. Except for to_valid_utf8(), everything expects valid UTF-8.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace quern::tokenizer {

// Bytes of the character that starts with `lead`.
inline size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// The code point at `p`; `p` moves behind it.
inline char32_t next_code_point(const char*& p) {
  const auto b0 = static_cast<unsigned char>(*p++);
  if (b0 < 0x80) return b0;
  const auto follow = [&p] { return static_cast<char32_t>(static_cast<unsigned char>(*p++) & 0x3F); };
  if (b0 < 0xE0) {
    const char32_t b1 = follow();
    return (b0 & 0x1FU) << 6 | b1;
  }
  if (b0 < 0xF0) {
    const char32_t b1 = follow();
    const char32_t b2 = follow();
    return (b0 & 0x0FU) << 12 | b1 << 6 | b2;
  }
  const char32_t b1 = follow();
  const char32_t b2 = follow();
  const char32_t b3 = follow();
  return (b0 & 0x07U) << 18 | b1 << 12 | b2 << 6 | b3;
}

inline size_t count_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

inline char32_t code_point_at(const char* p) {
  return next_code_point(p);
}

inline void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xC0 | c >> 6));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | c >> 12));
    out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out.push_back(static_cast<char>(0xF0 | c >> 18));
    out.push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

// The first code point of `text` read from its end.
inline char32_t last_code_point(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return code_point_at(text.data() + at);
}

constexpr char32_t kReplacementCharacter = 0xFFFD;
constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

// What a scan for the next character found.
struct Utf8Scan {
  size_t length = 0;        // of the valid character, or of the malformed sequence to replace
  bool valid = false;       // a whole character
  bool incomplete = false;  // the text ends within a character that could still become valid
};

// Unicode 3.9, "maximal subpart" practice: each longest prefix of a well-formed sequence is one error.
Utf8Scan scan_utf8(std::string_view text);

bool is_valid_utf8(std::string_view text);
// Malformed sequences become U+FFFD.
std::string to_valid_utf8(std::string_view text);

}  // namespace quern::tokenizer
