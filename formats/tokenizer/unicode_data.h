// Unicode properties of code points, of the versions that Hugging Face `tokenizers` uses
// (make_unicode_tables.py).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace quern::tokenizer {

// General categories; Cn is "unassigned".
enum class Category : uint8_t {
  Cn,
  Cc,
  Cf,
  Co,
  Cs,
  Ll,
  Lm,
  Lo,
  Lt,
  Lu,
  Mc,
  Me,
  Mn,
  Nd,
  Nl,
  No,
  Pc,
  Pd,
  Pe,
  Pf,
  Pi,
  Po,
  Ps,
  Sc,
  Sk,
  Sm,
  So,
  Zl,
  Zp,
  Zs
};

// What the split patterns of byte-level tokenizers tell apart.
enum class CharClass : uint8_t { Letter, Number, Space, Other };

// A value of one byte for each code point, stored as the distinct blocks of 256.
class ByteTable {
 public:
  // `value(code_point)` is asked once for each code point, in ascending order.
  template <class Value>
  explicit ByteTable(Value value) {
    for (uint32_t block = 0; block < kBlocks; ++block) {
      std::array<uint8_t, 256> bytes;
      for (uint32_t i = 0; i < 256; ++i) bytes[i] = static_cast<uint8_t>(value(block << 8 | i));
      block_of_[block] = find_or_add(bytes);
    }
  }
  uint8_t operator[](char32_t c) const { return c < 0x110000 ? blocks_[block_of_[c >> 8]][c & 0xFF] : 0; }

 private:
  static constexpr uint32_t kBlocks = 0x1100;
  uint16_t find_or_add(const std::array<uint8_t, 256>& bytes);

  std::array<uint16_t, kBlocks> block_of_{};
  std::vector<std::array<uint8_t, 256>> blocks_;
};

// Built on first use.
const ByteTable& category_table();
const ByteTable& char_class_table();

inline Category category_of(char32_t c) {
  return static_cast<Category>(category_table()[c]);
}

// The property White_Space.
inline bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

}  // namespace quern::tokenizer
