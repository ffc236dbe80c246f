#include "formats/chat_template/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "formats/tokenizer/unicode_data.h"
#include "formats/tokenizer/utf8.h"
#include "ir/error.h"

namespace quern::chat_template {
namespace {

using tokenizer::append_utf8;
using tokenizer::code_point_at;
using tokenizer::is_white_space;
using tokenizer::utf8_length;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

// Python counts the separators 0x1C to 0x1F as spaces, too.
bool is_space(char32_t c) {
  return is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

// Line ends become \n, and one at the end of the template goes.
std::string with_plain_lines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : owned_(with_plain_lines(source)), source_(owned_) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) read_data();
    Token end;
    end.line = line_;
    tokens_.push_back(end);
    return std::move(tokens_);
  }

 private:
  using Kind = Token::Kind;

  [[noreturn]] void fail(const std::string& what) const {
    throw_error(ErrorCode::InvalidModel, "chat template, line ", line_, ": ", what);
  }

  char peek(size_t ahead = 0) const { return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0'; }
  bool at(std::string_view text) const { return source_.substr(at_).starts_with(text); }

  void advance(size_t bytes) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at_ + bytes), '\n'));
    at_ += bytes;
  }

  void skip_spaces() {
    while (at_ < source_.size() && is_space(code_point_at(source_.data() + at_)))
      advance(utf8_length(source_[at_]));
  }

  void add(Kind kind, std::string text = {}) {
    Token token;
    token.kind = kind;
    token.text = std::move(text);
    token.line = line_;
    tokens_.push_back(std::move(token));
  }

  // Text up to the next tag, and the tag.
  void read_data() {
    size_t tag = at_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 >= source_.size()) {
        add_data(source_.substr(at_));
        advance(source_.size() - at_);
        return;
      }
      if (source_[tag + 1] == '{' || source_[tag + 1] == '%' || source_[tag + 1] == '#') break;
      ++tag;
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const bool signed_tag = sign == '-' || sign == '+';
    add_data(stripped(source_.substr(at_, tag - at_), kind, sign));
    advance(tag - at_ + 2 + (signed_tag ? 1 : 0));
    if (kind == '#') {
      skip_comment();
    } else if (kind == '{') {
      add(Kind::VariableBegin);
      read_tag(Kind::VariableEnd, "}}");
    } else if (!read_raw()) {
      add(Kind::BlockBegin);
      read_tag(Kind::BlockEnd, "%}");
    }
  }

  void add_data(std::string_view text) {
    if (!text.empty()) add(Kind::Data, std::string(text));
  }

  // What is left of the text before a tag: a minus takes all space, and a block or comment that is first in
  // its line takes the space before it.
  std::string_view stripped(std::string_view text, char kind, char sign) const {
    if (sign == '-') {
      while (!text.empty() && is_space(tokenizer::last_code_point(text))) {
        do text.remove_suffix(1);
        while (!text.empty() && (static_cast<unsigned char>(text_end(text)) & 0xC0) == 0x80);
      }
      return text;
    }
    if (sign == '+' || kind == '{') return text;
    const size_t line_start = text.rfind('\n') + 1;
    if (line_start == 0 && !line_starting_) return text;
    const std::string_view indent = text.substr(line_start);
    for (size_t i = 0; i < indent.size(); i += utf8_length(indent[i])) {
      if (!is_space(code_point_at(indent.data() + i))) return text;
    }
    return text.substr(0, line_start);
  }

  // The byte behind `text`, which tells whether its last character was cut off whole.
  char text_end(std::string_view text) const { return text.data()[text.size()]; }

  void skip_comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string_view::npos) fail("the comment isn't closed");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    advance(end - at_ + 2);
    finish_tag(sign, true);
  }

  // What follows a tag's end: a minus takes all space along, a block takes the line end.
  void finish_tag(char sign, bool trims) {
    const size_t before = at_;
    if (sign == '-') {
      skip_spaces();
    } else if (sign != '+' && trims && peek() == '\n') {
      advance(1);
    }
    line_starting_ = at_ > before && source_[at_ - 1] == '\n';
  }

  // {% raw %} ... {% endraw %}, if it stands here.
  bool read_raw() {
    const size_t start = at_;
    const int line = line_;
    skip_spaces();
    if (!at("raw") || is_name_start(peek(3)) || is_digit(peek(3))) return rewind(start, line);
    advance(3);
    skip_spaces();
    const bool minus = at("-%}");
    if (!minus && !at("%}")) return rewind(start, line);
    advance(minus ? 3 : 2);
    if (minus) skip_spaces();
    line_starting_ = source_[at_ - 1] == '\n';
    for (size_t end = source_.find("{%", at_); end != std::string_view::npos;
         end = source_.find("{%", end + 1)) {
      if (close_raw(end)) return true;
    }
    fail("the raw block isn't closed");
  }

  bool rewind(size_t start, int line) {
    at_ = start;
    line_ = line;
    return false;
  }

  bool close_raw(size_t tag) {
    size_t p = tag + 2;
    const char sign = p < source_.size() ? source_[p] : '\0';
    if (sign == '-' || sign == '+') ++p;
    const auto skip = [&] {
      while (p < source_.size() && is_space(code_point_at(source_.data() + p))) p += utf8_length(source_[p]);
    };
    skip();
    if (!source_.substr(p).starts_with("endraw")) return false;
    p += 6;
    skip();
    const char end_sign = p < source_.size() ? source_[p] : '\0';
    if (end_sign == '-' || end_sign == '+') ++p;
    if (!source_.substr(p).starts_with("%}")) return false;
    add_data(stripped(source_.substr(at_, tag - at_), '%', sign));
    advance(p + 2 - at_);
    finish_tag(end_sign, true);
    return true;
  }

  void read_tag(Kind end_kind, std::string_view end) {
    std::vector<char> open;
    while (true) {
      skip_spaces();
      if (at_ >= source_.size()) fail("the tag isn't closed");
      if (open.empty()) {
        const char sign = peek();
        const bool has_sign = (sign == '-' || (sign == '+' && end_kind == Kind::BlockEnd)) &&
                              source_.substr(at_ + 1).starts_with(end);
        if (has_sign || at(end)) {
          add(end_kind);
          advance(end.size() + (has_sign ? 1 : 0));
          finish_tag(has_sign ? sign : '\0', end_kind == Kind::BlockEnd);
          return;
        }
      }
      read_expression_token(open);
    }
  }

  void read_expression_token(std::vector<char>& open) {
    const char c = peek();
    if (is_digit(c)) {
      read_number();
    } else if (is_name_start(c)) {
      size_t length = 0;
      while (is_name_start(peek(length)) || is_digit(peek(length))) ++length;
      add(Kind::Name, std::string(source_.substr(at_, length)));
      advance(length);
    } else if (c == '"' || c == '\'') {
      read_string(c);
    } else {
      read_operator(open);
    }
  }

  void read_operator(std::vector<char>& open) {
    static constexpr std::array<std::string_view, 26> kOperators = {
        "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<",
        ">",  "=",  "(",  ")",  "[",  "]",  "{", "}", ".", ":", "|", ",", ";"};
    for (const std::string_view name : kOperators) {
      if (!at(name)) continue;
      const char c = name.front();
      if (c == '(') open.push_back(')');
      if (c == '[') open.push_back(']');
      if (c == '{') open.push_back('}');
      if (c == ')' || c == ']' || c == '}') {
        if (open.empty()) fail(concat("unexpected '", c, "'"));
        if (open.back() != c) fail(concat("unexpected '", c, "', expected '", open.back(), "'"));
        open.pop_back();
      }
      add(Kind::Operator, std::string(name));
      advance(name.size());
      return;
    }
    fail(concat("unexpected character '", source_.substr(at_, utf8_length(peek())), "'"));
  }

  // Digits with single underscores between them, from at_ + length on.
  void read_digits(size_t& length, std::string& digits) const {
    while (is_digit(peek(length)) || (peek(length) == '_' && is_digit(peek(length + 1)))) {
      if (peek(length) != '_') digits.push_back(peek(length));
      ++length;
    }
  }

  void read_number() {
    const int base = peek() != '0'             ? 10
                     : (peek(1) | 0x20) == 'x' ? 16
                     : (peek(1) | 0x20) == 'o' ? 8
                     : (peek(1) | 0x20) == 'b' ? 2
                                               : 10;
    size_t length = 0;
    std::string digits;
    bool real = false;
    if (base == 10) {
      read_digits(length, digits);
      if (peek(length) == '.' && is_digit(peek(length + 1))) {
        real = true;
        digits.push_back('.');
        read_digits(++length, digits);
      }
      const size_t sign = peek(length + 1) == '+' || peek(length + 1) == '-' ? 1 : 0;
      if ((peek(length) | 0x20) == 'e' && is_digit(peek(length + 1 + sign))) {
        real = true;
        digits.append("e").append(source_.substr(at_ + length + 1, sign));
        length += 1 + sign;
        read_digits(length, digits);
      }
    } else {
      for (length = 2; std::isxdigit(static_cast<unsigned char>(peek(length))) != 0 || peek(length) == '_';
           ++length) {
        if (peek(length) != '_') digits.push_back(peek(length));
      }
    }
    add(real ? Kind::Float : Kind::Int);
    Token& token = tokens_.back();
    const char* first = digits.data() + (digits.starts_with('+') ? 1 : 0);
    const char* last = digits.data() + digits.size();
    const auto result =
        real ? std::from_chars(first, last, token.real) : std::from_chars(first, last, token.integer, base);
    if (result.ec != std::errc() || result.ptr != last) fail("the number '" + digits + "' is out of range");
    advance(length);
  }

  void read_string(char quote) {
    std::string text;
    size_t length = 1;
    while (peek(length) != quote) {
      if (at_ + length >= source_.size()) fail("the string isn't closed");
      if (peek(length) == '\\') {
        read_escape(++length, text);
      } else {
        text.push_back(peek(length++));
      }
    }
    add(Kind::String, std::move(text));
    advance(length + 1);
  }

  // An escape of Python's; `length` stands behind the backslash.
  void read_escape(size_t& length, std::string& text) {
    const char c = peek(length++);
    static constexpr std::string_view kNames = "abfnrtv\\'\"";
    static constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
    const size_t simple = kNames.find(c);
    if (simple != std::string_view::npos && c != '\0') {
      text.push_back(kValues[simple]);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      append_code_point(length, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16, text);
    } else if (c >= '0' && c <= '7') {
      --length;
      size_t digits = 1;
      while (digits < 3 && peek(length + digits) >= '0' && peek(length + digits) <= '7') ++digits;
      append_code_point(length, digits, 8, text);
    } else if (c != '\n') {  // a line end is skipped, anything else stays with its backslash
      text.push_back('\\');
      --length;
    }
  }

  void append_code_point(size_t& length, size_t digits, int base, std::string& text) {
    const std::string_view number = source_.substr(std::min(at_ + length, source_.size()), digits);
    uint32_t code = 0;
    const auto parsed = std::from_chars(number.data(), number.data() + number.size(), code, base);
    if (number.size() != digits || parsed.ec != std::errc() || parsed.ptr != number.data() + digits) {
      fail("a string has the malformed escape '\\" + std::string(number) + "'");
    }
    length += digits;
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      fail("a string names a code point that isn't one");
    append_utf8(text, code);
  }

  std::string owned_;
  std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  if (!tokenizer::is_valid_utf8(source))
    throw_error(ErrorCode::InvalidModel, "the chat template is not UTF-8");
  return Lexer(source).run();
}

std::string describe(const Token& token) {
  switch (token.kind) {
    case Token::Kind::Data:
      return "text";
    case Token::Kind::VariableBegin:
      return "'{{'";
    case Token::Kind::VariableEnd:
      return "'}}'";
    case Token::Kind::BlockBegin:
      return "'{%'";
    case Token::Kind::BlockEnd:
      return "'%}'";
    case Token::Kind::String:
      return "a string";
    case Token::Kind::Int:
    case Token::Kind::Float:
      return "a number";
    case Token::Kind::End:
      return "the end of the template";
    default:
      return "'" + token.text + "'";
  }
}

}  // namespace quern::chat_template
