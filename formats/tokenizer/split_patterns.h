// The regular expressions by which byte-level tokenizers split text, as hand-written matchers.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "formats/tokenizer/unicode_data.h"
#include "formats/tokenizer/utf8.h"

namespace quern::tokenizer {

// Reads the classes of characters along a text.
class ClassReader {
 public:
  explicit ClassReader(std::string_view text) : text_(text), classes_(char_class_table()) {}

  // Class of the character at `at`, which is before the end; `length` becomes its bytes.
  CharClass at(size_t at, size_t& length) const {
    const auto lead = static_cast<unsigned char>(text_[at]);
    if (lead < 0x80) {
      length = 1;
      return static_cast<CharClass>(classes_[lead]);
    }
    const char* p = text_.data() + at;
    const char32_t c = next_code_point(p);
    length = static_cast<size_t>(p - text_.data()) - at;
    return static_cast<CharClass>(classes_[c]);
  }
  // First position from `at` on where a character isn't of class `wanted`.
  size_t skip(size_t at, CharClass wanted) const {
    size_t length;
    while (at < text_.size() && this->at(at, length) == wanted) at += length;
    return at;
  }
  std::string_view text() const { return text_; }

 private:
  std::string_view text_;
  const ByteTable& classes_;
};

// A pattern that matches everywhere, so that its matches cover a text.
class SplitMatcher {
 public:
  // The matcher of a regular expression that is known here.
  static std::optional<SplitMatcher> known(std::string_view regex);
  static SplitMatcher gpt2();

  // emit(begin, end) for each match, in order.
  template <class Emit>
  void for_each(std::string_view text, Emit&& emit) const {
    const ClassReader reader(text);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = match_end_(reader, begin);
      emit(begin, end);
      begin = end;
    }
  }

 private:
  using MatchEnd = size_t (*)(const ClassReader& reader, size_t begin);
  explicit SplitMatcher(MatchEnd match_end) : match_end_(match_end) {}
  MatchEnd match_end_;
};

}  // namespace quern::tokenizer
