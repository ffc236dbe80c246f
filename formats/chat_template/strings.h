// Texts as sequences of characters, as Python has them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/chat_template/value.h"

namespace quern::chat_template {

// The characters of a text by number. Refers to the text.
class CodePoints {
 public:
  explicit CodePoints(std::string_view text);
  size_t size() const { return starts_.size() - 1; }
  std::string slice(size_t first, size_t count) const;
  // Number of the character that begins at a byte.
  size_t index_of(size_t byte) const;
  size_t byte_of(size_t index) const { return starts_[index]; }

 private:
  std::string_view text_;
  std::vector<size_t> starts_;  // and the end
};

// What Python's slice(start, stop, step) takes of a sequence of `size`; step isn't 0.
std::vector<size_t> slice_indices(size_t size, const std::optional<int64_t> (&bounds)[3]);

// Python's str.isspace() of a character.
bool is_python_space(char32_t c);
// str.strip() and its sides; `characters` empty: spaces.
std::string_view strip_left(std::string_view text, std::string_view characters);
std::string_view strip_right(std::string_view text, std::string_view characters);
std::string to_upper_case(std::string_view text);
std::string to_lower_case(std::string_view text);
// str.title() and str.capitalize().
std::string to_title_case(std::string_view text);
std::string capitalized(std::string_view text);
// At most `count` replacements; negative: all.
std::string replaced(std::string_view text, std::string_view from, std::string_view to, int64_t count);
// str.split() at spaces, or at a separator that isn't empty; `most` negative: no limit.
std::vector<std::string> split_at_spaces(std::string_view text, int64_t most);
std::vector<std::string> split_at(std::string_view text, std::string_view separator, int64_t most);
std::vector<std::string> split_at_from_right(std::string_view text, std::string_view separator, int64_t most);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends);

Value loop_attribute(class Interpreter& interpreter, const Loop& loop, const std::string& name);

}  // namespace quern::chat_template
