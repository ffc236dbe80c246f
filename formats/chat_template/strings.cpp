#include "formats/chat_template/strings.h"

#include <utf8proc.h>

#include <algorithm>

#include "formats/tokenizer/unicode_data.h"
#include "formats/tokenizer/utf8.h"

namespace quern::chat_template {
namespace {

using tokenizer::append_utf8;
using tokenizer::code_point_at;
using tokenizer::last_code_point;
using tokenizer::next_code_point;
using tokenizer::utf8_length;

bool is_stripped(char32_t c, std::string_view characters) {
  if (characters.empty()) return is_python_space(c);
  std::string own;
  append_utf8(own, c);
  for (size_t at = 0; at < characters.size(); at += utf8_length(characters[at])) {
    if (characters.substr(at, utf8_length(characters[at])) == own) return true;
  }
  return false;
}

void append_upper(std::string& out, char32_t c) {
  if (c == 0xDF) {
    out += "SS";  // the one common letter whose upper case is two
  } else {
    append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
  }
}

void append_lower(std::string& out, char32_t c) {
  if (c == 0x130) {
    out += "i\u0307";
  } else {
    append_utf8(out, tokenizer::to_lower(c));
  }
}

bool is_letter(char32_t c) {
  const tokenizer::Category category = tokenizer::category_of(c);
  return category >= tokenizer::Category::Ll && category <= tokenizer::Category::Lu;
}

// Python's line ends.
bool is_line_end(char32_t c) {
  return c == '\n' || c == '\r' || c == 0xB || c == 0xC || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
         c == 0x2028 || c == 0x2029;
}

}  // namespace

CodePoints::CodePoints(std::string_view text) : text_(text) {
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) starts_.push_back(at);
  starts_.push_back(text.size());
}

std::string CodePoints::slice(size_t first, size_t count) const {
  return std::string(text_.substr(starts_[first], starts_[first + count] - starts_[first]));
}

size_t CodePoints::index_of(size_t byte) const {
  return static_cast<size_t>(std::lower_bound(starts_.begin(), starts_.end(), byte) - starts_.begin());
}

std::vector<size_t> slice_indices(size_t size, const std::optional<int64_t> (&bounds)[3]) {
  const auto length = static_cast<int64_t>(size);
  const int64_t step = bounds[2].value_or(1);
  const int64_t lowest = step > 0 ? 0 : -1;
  const int64_t highest = step > 0 ? length : length - 1;
  const auto clamp = [&](std::optional<int64_t> bound, int64_t otherwise) {
    if (!bound) return otherwise;
    return std::clamp(*bound < 0 ? *bound + length : *bound, lowest, highest);
  };
  const int64_t start = clamp(bounds[0], step > 0 ? lowest : highest);
  const int64_t stop = clamp(bounds[1], step > 0 ? highest : lowest);
  std::vector<size_t> indices;
  // A step beyond the length takes one item at most.
  const int64_t stride = std::clamp(step, -length - 1, length + 1);
  for (int64_t i = start; step > 0 ? i < stop : i > stop; i += stride)
    indices.push_back(static_cast<size_t>(i));
  return indices;
}

bool is_python_space(char32_t c) {
  return tokenizer::is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

std::string_view strip_left(std::string_view text, std::string_view characters) {
  while (!text.empty() && is_stripped(code_point_at(text.data()), characters))
    text.remove_prefix(utf8_length(text[0]));
  return text;
}

std::string_view strip_right(std::string_view text, std::string_view characters) {
  while (!text.empty()) {
    const char32_t c = last_code_point(text);
    if (!is_stripped(c, characters)) break;
    text.remove_suffix(c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4);
  }
  return text;
}

std::string to_upper_case(std::string_view text) {
  std::string out;
  for (const char* p = text.data(); p != text.data() + text.size();) append_upper(out, next_code_point(p));
  return out;
}

std::string to_lower_case(std::string_view text) {
  std::string out;
  for (const char* p = text.data(); p != text.data() + text.size();) append_lower(out, next_code_point(p));
  return out;
}

std::string to_title_case(std::string_view text) {
  std::string out;
  bool within = false;
  for (const char* p = text.data(); p != text.data() + text.size();) {
    const char32_t c = next_code_point(p);
    if (within) {
      append_lower(out, c);
    } else {
      append_upper(out, c);
    }
    within = is_letter(c);
  }
  return out;
}

std::string capitalized(std::string_view text) {
  if (text.empty()) return {};
  const size_t first = utf8_length(text[0]);
  return to_upper_case(text.substr(0, first)) + to_lower_case(text.substr(first));
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to, int64_t count) {
  std::string out;
  if (from.empty()) {
    // Before every character and at the end.
    for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
      if (count != 0) out += to;
      if (count > 0) --count;
      out += text.substr(at, utf8_length(text[at]));
    }
    if (count != 0) out += to;
    return out;
  }
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string_view::npos && count != 0; at = text.find(from, done)) {
    out.append(text.substr(done, at - done)).append(to);
    done = at + from.size();
    if (count > 0) --count;
  }
  return out.append(text.substr(done));
}

std::vector<std::string> split_at_spaces(std::string_view text, int64_t most) {
  std::vector<std::string> parts;
  text = strip_left(text, "");
  while (!text.empty()) {
    if (most >= 0 && static_cast<int64_t>(parts.size()) == most) {
      parts.emplace_back(strip_right(text, ""));
      break;
    }
    size_t end = 0;
    while (end < text.size() && !is_python_space(code_point_at(text.data() + end)))
      end += utf8_length(text[end]);
    parts.emplace_back(text.substr(0, end));
    text = strip_left(text.substr(end), "");
  }
  return parts;
}

std::vector<std::string> split_at(std::string_view text, std::string_view separator, int64_t most) {
  std::vector<std::string> parts;
  size_t done = 0;
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t at = text.find(separator, done);
    if (at == std::string_view::npos) break;
    parts.emplace_back(text.substr(done, at - done));
    done = at + separator.size();
  }
  parts.emplace_back(text.substr(done));
  return parts;
}

std::vector<std::string> split_at_from_right(std::string_view text, std::string_view separator,
                                             int64_t most) {
  std::vector<std::string> parts;
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t at = text.rfind(separator);
    if (at == std::string_view::npos) break;
    parts.emplace_back(text.substr(at + separator.size()));
    text = text.substr(0, at);
  }
  parts.emplace_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text[at]);
    if (!is_line_end(code_point_at(text.data() + at))) {
      at += length;
      continue;
    }
    const size_t behind = at + (text.substr(at).starts_with("\r\n") ? 2 : length);
    lines.emplace_back(text.substr(begin, (keep_ends ? behind : at) - begin));
    begin = at = behind;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

}  // namespace quern::chat_template
