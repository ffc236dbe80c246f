#include "formats/tokenizer/charsmap.h"

#include <cstring>

#include "formats/tokenizer/unicode_data.h"
#include "formats/tokenizer/utf8.h"
#include "ir/error.h"

namespace quern::tokenizer {
namespace {

// The units of Darts-clone's double array.
bool has_leaf(uint32_t unit) {
  return (unit >> 8 & 1) != 0;
}
uint32_t value_of(uint32_t unit) {
  return unit & 0x7FFFFFFF;
}
uint32_t label_of(uint32_t unit) {
  return unit & 0x800000FF;
}
uint32_t offset_of(uint32_t unit) {
  return unit >> 10 << ((unit & 0x200) >> 6);
}

// Grapheme_Cluster_Break of what can be within a cluster of five bytes.
enum class Break { Other, Control, Extend, Prepend };

Break break_of(char32_t c) {
  if (c == 0x200C || c == 0x200D) return Break::Extend;
  if ((c >= 0x600 && c <= 0x605) || c == 0x6DD || c == 0x70F || c == 0x890 || c == 0x891 || c == 0x8E2 ||
      c == 0xD4E || c == 0x110BD || c == 0x110CD) {
    return Break::Prepend;
  }
  if ((c >= 0xFF9E && c <= 0xFF9F) || (c >= 0x1F3FB && c <= 0x1F3FF) || (c >= 0xE0020 && c <= 0xE007F) ||
      c == 0xE33 || c == 0xEB3) {
    return Break::Extend;
  }
  switch (category_of(c)) {
    case Category::Cc:
    case Category::Cf:
    case Category::Zl:
    case Category::Zp:
      return Break::Control;
    case Category::Me:
    case Category::Mn:
    case Category::Mc:
      return Break::Extend;
    default:
      return Break::Other;
  }
}

}  // namespace

Charsmap::Charsmap(std::string_view bytes) {
  if (bytes.empty()) return;
  uint32_t trie_bytes = 0;
  if (bytes.size() >= 4) std::memcpy(&trie_bytes, bytes.data(), 4);
  if (bytes.size() < 4 || trie_bytes > bytes.size() - 4 || trie_bytes % 4 != 0) {
    throw_error(ErrorCode::Corrupt, "tokenizer: the precompiled charsmap of ", bytes.size(),
                " bytes claims a trie of ", trie_bytes);
  }
  units_.resize(trie_bytes / 4);
  std::memcpy(units_.data(), bytes.data() + 4, trie_bytes);
  replacements_ = bytes.substr(4 + trie_bytes);
  if (!is_valid_utf8(replacements_)) {
    throw_error(ErrorCode::Corrupt, "tokenizer: the precompiled charsmap holds invalid UTF-8");
  }
}

std::string_view Charsmap::replacement_at(uint32_t offset) const {
  if (offset >= replacements_.size()) {
    throw_error(ErrorCode::Corrupt, "tokenizer: the precompiled charsmap refers to byte ", offset, " of ",
                replacements_.size());
  }
  const char* text = replacements_.c_str() + offset;
  if ((static_cast<unsigned char>(*text) & 0xC0) == 0x80) {
    throw_error(ErrorCode::Corrupt, "tokenizer: the precompiled charsmap cuts a character");
  }
  return text;
}

std::optional<Charsmap::Match> Charsmap::find(std::string_view text, bool shortest) const {
  if (units_.empty()) return std::nullopt;
  std::optional<Match> match;
  uint32_t at = offset_of(units_[0]);
  for (size_t i = 0; i < text.size() && text[i] != '\0'; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    at ^= byte;
    if (at >= units_.size() || label_of(units_[at]) != byte) break;
    const uint32_t unit = units_[at];
    at ^= offset_of(unit);
    if (!has_leaf(unit)) continue;
    if (at >= units_.size()) break;
    match = Match{i + 1, replacement_at(value_of(units_[at]))};
    if (shortest) break;
  }
  return match;
}

size_t short_grapheme_end(std::string_view text, size_t begin) {
  const char* end = text.data() + text.size();
  const char* p = text.data() + begin;
  char32_t previous = next_code_point(p);
  while (p != end) {
    const char* here = p;
    const char32_t c = next_code_point(p);
    const Break left = break_of(previous);
    const Break right = break_of(c);
    const bool line_end = previous == '\r' && c == '\n';
    const bool joined = left != Break::Control && right != Break::Control &&
                        (right == Break::Extend || left == Break::Prepend);
    if (!line_end && !joined) return static_cast<size_t>(here - text.data());
    previous = c;
  }
  return text.size();
}

}  // namespace quern::tokenizer
