// Where a pattern matches in a text, and what pre-tokenizers make of it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tokenizer/regex.h"
#include "formats/tokenizer/split_patterns.h"

namespace quern::tokenizer {

// A stretch of text that is, or isn't, a match. The spans of a text cover it in order.
struct Span {
  size_t begin;
  size_t end;
  bool match;
};

class Pattern {
 public:
  virtual ~Pattern() = default;
  // `text` isn't empty.
  virtual void find(std::string_view text, std::vector<Span>& spans) const = 0;
  // Set for the patterns of split_patterns.h, which match everywhere.
  virtual std::optional<SplitMatcher> matcher() const { return std::nullopt; }
};

// One of the hand-written matchers where `regex` is one of theirs, else Oniguruma's.
std::unique_ptr<Pattern> make_regex_pattern(std::string_view regex);
// Every occurrence of `string`; of an empty one, the place before each character and the end.
std::unique_ptr<Pattern> make_string_pattern(std::string_view string);
// Every character for which `matches` is true, as a match of its own.
std::unique_ptr<Pattern> make_char_pattern(std::function<bool(char32_t)> matches);

// What becomes of the matches, which are thought of as delimiters ("a-b--c" and "-"):
enum class SplitBehavior {
  Removed,             // a b c
  Isolated,            // a - b - - c
  MergedWithPrevious,  // a- b- - c
  MergedWithNext,      // a -b - -c
  Contiguous,          // a - b -- c
};

// Turns spans into the pieces to keep; `match` loses its meaning.
void apply_behavior(SplitBehavior behavior, std::vector<Span>& spans);

}  // namespace quern::tokenizer
