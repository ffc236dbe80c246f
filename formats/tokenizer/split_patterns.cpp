#include "formats/tokenizer/split_patterns.h"

namespace quern::tokenizer {
namespace {

// Length of 's 't 'm 'd 're 've 'll at `at`, or 0.
size_t contraction(std::string_view text, size_t at) {
  if (text[at] != '\'' || at + 1 >= text.size()) return 0;
  const char first = text[at + 1];
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if (at + 2 >= text.size()) return 0;
  const char second = text[at + 2];
  return ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l') ? 3 : 0;
}

// End of `\s+(?!\S)|\s+` at `begin`, where whitespace stands: the run, less its last character if text
// follows.
size_t spaces_match_end(const ClassReader& reader, size_t begin) {
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

}  // namespace

size_t gpt2_match_end(const ClassReader& reader, size_t begin) {
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
  if (kind == CharClass::Space) return spaces_match_end(reader, begin);
  return reader.skip(run + length, kind);
}

}  // namespace quern::tokenizer
