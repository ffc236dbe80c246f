#include "formats/tokenizer/byte_level.h"

#include <array>

#include "formats/tokenizer/utf8.h"

namespace quern::tokenizer {
namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

struct Alphabet {
  std::array<char32_t, 256> chars{};
  std::array<int16_t, 0x144> bytes{};
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.bytes.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t c = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
    alphabet.chars[static_cast<size_t>(byte)] = c;
    alphabet.bytes[c] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

char32_t byte_level_char(unsigned char byte) {
  return kAlphabet.chars[byte];
}

int byte_of_byte_level_char(char32_t c) {
  return c < kAlphabet.bytes.size() ? kAlphabet.bytes[c] : -1;
}

void append_byte_level(std::string_view bytes, std::string& out) {
  for (const char byte : bytes) append_utf8(out, kAlphabet.chars[static_cast<unsigned char>(byte)]);
}

}  // namespace quern::tokenizer
