#include "formats/tokenizer/split_patterns.h"

#include <algorithm>
#include <array>

namespace quern::tokenizer {
namespace {

// Everything below gives the end of the match that begins at `begin`, before the end of the text.

// Length of 's 't 'm 'd 're 've 'll at `at`, or 0.
size_t contraction(std::string_view text, size_t at) {
  if (text[at] != '\'' || at + 1 >= text.size()) return 0;
  const char first = text[at + 1];
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if (at + 2 >= text.size()) return 0;
  const char second = text[at + 2];
  return ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l') ? 3 : 0;
}

char lower_ascii(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

// Length of (?i:'s|'t|'re|'ve|'m|'ll|'d) at `at`, or 0. The long s (U+017F) is an s, too.
size_t caseless_contraction(std::string_view text, size_t at) {
  if (at >= text.size() || text[at] != '\'') return 0;
  std::array<char, 3> lowered{};
  const size_t length = std::min<size_t>(3, text.size() - at);
  for (size_t i = 0; i < length; ++i) lowered[i] = lower_ascii(text[at + i]);
  if (length == 3 && text[at + 1] == '\xC5' && text[at + 2] == '\xBF') return 3;
  return contraction({lowered.data(), length}, 0);
}

// \s+(?!\S)|\s+ where whitespace stands: the run, less its last character if text follows.
size_t spaces_end(const ClassReader& reader, size_t begin) {
  const std::string_view text = reader.text();
  size_t last = begin;
  size_t end = begin;
  size_t length = 0;
  while (end < text.size() && reader.at(end, length) == CharClass::Space) {
    last = end;
    end += length;
  }
  return end == text.size() || last == begin ? end : last;
}

// \s*[\r\n]+|\s+(?!\S)|\s+ where whitespace stands: to the last line end of the run, if there is one.
size_t lines_or_spaces_end(const ClassReader& reader, size_t begin) {
  const std::string_view text = reader.text();
  size_t behind_line = 0;
  size_t length = 0;
  for (size_t at = begin; at < text.size() && reader.at(at, length) == CharClass::Space; at += length) {
    if (text[at] == '\n' || text[at] == '\r') behind_line = at + 1;
  }
  return behind_line > 0 ? behind_line : spaces_end(reader, begin);
}

bool is_line_end(char c) {
  return c == '\r' || c == '\n';
}

//  's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
size_t gpt2_end(const ClassReader& reader, size_t begin) {
  const std::string_view text = reader.text();
  const size_t short_form = contraction(text, begin);
  if (short_form > 0) return begin + short_form;
  size_t length = 0;
  size_t run = begin;
  CharClass kind = reader.at(begin, length);
  if (text[begin] == ' ' && begin + 1 < text.size()) {
    run = begin + 1;
    kind = reader.at(run, length);
  }
  if (kind == CharClass::Space) return spaces_end(reader, begin);
  return reader.skip(run + length, kind);
}

// \p{N}{1,max}
size_t digits_end(const ClassReader& reader, size_t begin, size_t max) {
  size_t at = begin;
  size_t length = 0;
  for (size_t i = 0; i < max && at < reader.text().size() && reader.at(at, length) == CharClass::Number;
       ++i) {
    at += length;
  }
  return at;
}

//  ?[^\s\p{L}\p{N}]+[\r\n]* (and '/' where `slashes`) with the first of the run of others at `run`
size_t others_end(const ClassReader& reader, size_t run, bool slashes) {
  size_t at = reader.skip(run, CharClass::Other);
  const std::string_view text = reader.text();
  while (at < text.size() && (is_line_end(text[at]) || (slashes && text[at] == '/'))) ++at;
  return at;
}

// What follows the words in the patterns of cl100k and o200k, where no letter stands.
size_t cl100k_rest_end(const ClassReader& reader, size_t begin, size_t max_digits, bool slashes) {
  size_t length = 0;
  const CharClass kind = reader.at(begin, length);
  if (kind == CharClass::Number) return digits_end(reader, begin, max_digits);
  if (kind == CharClass::Other) return others_end(reader, begin, slashes);
  const std::string_view text = reader.text();
  if (text[begin] == ' ' && begin + 1 < text.size() && reader.at(begin + 1, length) == CharClass::Other) {
    return others_end(reader, begin + 1, slashes);
  }
  return lines_or_spaces_end(reader, begin);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
// ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
template <size_t kMaxDigits>
size_t cl100k_end(const ClassReader& reader, size_t begin) {
  const std::string_view text = reader.text();
  const size_t short_form = caseless_contraction(text, begin);
  if (short_form > 0) return begin + short_form;
  size_t length = 0;
  const CharClass kind = reader.at(begin, length);
  if (kind == CharClass::Letter) return reader.skip(begin + length, CharClass::Letter);
  const size_t next = begin + length;
  if (kind != CharClass::Number && !is_line_end(text[begin]) && next < text.size() &&
      reader.at(next, length) == CharClass::Letter) {
    return reader.skip(next + length, CharClass::Letter);
  }
  return cl100k_rest_end(reader, begin, kMaxDigits, false);
}

// What o200k's pattern tells apart within words.
enum WordClass : uint8_t {
  kUpper = 1,  // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
  kLower = 2,  // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
};

const ByteTable& word_class_table() {
  static const ByteTable table([](uint32_t c) -> uint8_t {
    switch (category_of(c)) {
      case Category::Lu:
      case Category::Lt:
        return kUpper;
      case Category::Ll:
        return kLower;
      case Category::Lm:
      case Category::Lo:
      case Category::Mc:
      case Category::Me:
      case Category::Mn:
        return kUpper | kLower;
      default:
        return 0;
    }
  });
  return table;
}

// First position from `at` on where a character isn't of the class.
size_t skip_word_class(std::string_view text, size_t at, WordClass wanted) {
  const ByteTable& classes = word_class_table();
  const char* p = text.data() + at;
  const char* end = text.data() + text.size();
  while (p != end) {
    const char* here = p;
    if ((classes[next_code_point(p)] & wanted) == 0) return static_cast<size_t>(here - text.data());
  }
  return text.size();
}

// [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ at `begin`, or else
// [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*; `begin` where neither matches. Where no
// lower-case letter follows the upper-case ones, the first gives these back up to the last that is of both
// classes.
struct WordEnds {
  size_t lower_ending;  // of the first alternative; `begin` if it fails
  size_t upper_ending;  // of the second
};

WordEnds word_ends(std::string_view text, size_t begin) {
  const size_t upper_end = skip_word_class(text, begin, kUpper);
  const size_t lower_end = skip_word_class(text, upper_end, kLower);
  if (lower_end > upper_end) return {lower_end, lower_end};
  for (size_t at = upper_end; at > begin;) {
    const size_t end = at;
    do --at;
    while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
    if ((word_class_table()[code_point_at(text.data() + at)] & kLower) != 0) return {end, upper_end};
  }
  return {begin, upper_end};
}

// [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
// [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
// \p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
size_t o200k_end(const ClassReader& reader, size_t begin) {
  const std::string_view text = reader.text();
  size_t length = 0;
  const CharClass kind = reader.at(begin, length);
  const bool may_prefix = kind != CharClass::Letter && kind != CharClass::Number && !is_line_end(text[begin]);
  const size_t behind = begin + length;
  const WordEnds prefixed = may_prefix ? word_ends(text, behind) : WordEnds{behind, behind};
  const WordEnds plain = word_ends(text, begin);
  size_t end = begin;
  if (prefixed.lower_ending > behind) {
    end = prefixed.lower_ending;
  } else if (plain.lower_ending > begin) {
    end = plain.lower_ending;
  } else if (prefixed.upper_ending > behind) {
    end = prefixed.upper_ending;
  } else if (plain.upper_ending > begin) {
    end = plain.upper_ending;
  }
  if (end > begin) return end + caseless_contraction(text, end);
  return cl100k_rest_end(reader, begin, 3, true);
}

struct KnownPattern {
  std::string_view regex;
  size_t (*match_end)(const ClassReader& reader, size_t begin);
};

// As tokenizer.json and tiktoken files spell them.
constexpr KnownPattern kKnown[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", gpt2_end},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", gpt2_end},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)", gpt2_end},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     cl100k_end<3>},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     cl100k_end<1>},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     o200k_end},
};

}  // namespace

SplitMatcher SplitMatcher::gpt2() {
  return SplitMatcher(gpt2_end);
}

std::optional<SplitMatcher> SplitMatcher::known(std::string_view regex) {
  for (const KnownPattern& pattern : kKnown) {
    if (pattern.regex == regex) return SplitMatcher(pattern.match_end);
  }
  return std::nullopt;
}

}  // namespace quern::tokenizer
