// Unicode properties of code points, of the versions that Hugging Face `tokenizers` uses
// (make_unicode_tables.py).
#pragma once

#include <array>
#include <cstdint>
#include <span>
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

enum class Script : uint8_t { Han, Hangul, Hiragana, Katakana };

// What the split patterns of byte-level tokenizers tell apart.
enum class CharClass : uint8_t { Letter, Number, Space, Other };

struct CodeRange {
  uint32_t first;
  uint32_t last;
};

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

// Bits of property_table().
enum Property : uint8_t {
  kWordCharacter = 1,    // \w of Rust's `regex`
  kPunctuation = 2,      // of the pre-tokenizers Punctuation and BertPreTokenizer
  kNumeric = 4,          // char::is_numeric of Rust
  kBertControl = 8,      // dropped by BertNormalizer's clean_text
  kNonspacingMark = 16,  // dropped by BertNormalizer's strip_accents
  kCombiningMark = 32,   // dropped by StripAccents
  kUnnormalized = 64,    // only newer versions of Unicode normalize it
};

// All tables are built on first use.
const ByteTable& category_table();
const ByteTable& char_class_table();
const ByteTable& property_table();
// Script classes of the pre-tokenizer UnicodeScripts; 0 joins any.
const ByteTable& script_class_table();

inline Category category_of(char32_t c) {
  return static_cast<Category>(category_table()[c]);
}
inline bool has_property(char32_t c, Property property) {
  return (property_table()[c] & property) != 0;
}

// The property White_Space.
inline bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// The simple lower-case mapping; only U+0130 has a longer one ("i", U+0307), for which this gives U+0130.
char32_t to_lower(char32_t c);

// The code points of a script, or of all categories in [first, last].
std::vector<CodeRange> script_ranges(Script script);
std::vector<CodeRange> category_ranges(Category first, Category last);

}  // namespace quern::tokenizer
