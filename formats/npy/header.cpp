#include "formats/npy/header.h"

#include <cctype>
#include <limits>
#include <optional>
#include <string_view>

#include "ir/error.h"

namespace quern::npy {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

// The few Python literals that a header is made of:
//   {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class LiteralParser {
 public:
  explicit LiteralParser(std::string_view text) : text_(text) {}

  Header parse() {
    expect('{');
    while (!accept('}')) {
      const std::string key = parse_string();
      expect(':');
      parse_value(key);
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) fail("nothing more");
    if (!descr_ || !fortran_order_ || !shape_) fail("the keys descr, fortran_order and shape");
    return {*descr_, *fortran_order_, *shape_, 0};
  }

 private:
  void parse_value(const std::string& key) {
    if (key == "descr" && !descr_) {
      skip_space();
      if (peek() == '[' || peek() == '(') {
        throw_error(ErrorCode::Unsupported,
                    "arrays of records are not supported; save each field on its own");
      }
      descr_ = parse_string();
    } else if (key == "fortran_order" && !fortran_order_) {
      fortran_order_ = parse_bool();
    } else if (key == "shape" && !shape_) {
      shape_ = parse_shape();
    } else {
      fail("the keys descr, fortran_order and shape, each once");
    }
  }

  Shape parse_shape() {
    Shape shape;
    expect('(');
    while (!accept(')')) {
      if (shape.size() == kMaxRank) fail("at most 64 dimensions");
      shape.push_back(parse_integer());
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return shape;
  }

  int64_t parse_integer() {
    skip_space();
    if (!std::isdigit(static_cast<unsigned char>(peek()))) fail("a dimension");
    int64_t value = 0;
    while (std::isdigit(static_cast<unsigned char>(peek()))) {
      if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, peek() - '0', &value)) {
        fail("a dimension of at most 63 bits");
      }
      ++at_;
    }
    if (peek() == 'L') ++at_;  // as Python 2 wrote long integers
    return value;
  }

  bool parse_bool() {
    skip_space();
    for (const auto& [word, value] : {std::pair{"True", true}, {"False", false}}) {
      if (text_.substr(at_).starts_with(word)) {
        at_ += std::string_view(word).size();
        return value;
      }
    }
    fail("True or False");
  }

  std::string parse_string() {
    skip_space();
    const char quote = peek();
    if (quote != '\'' && quote != '"') fail("a quoted word");
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail("a closing quote");
    const std::string_view word = text_.substr(at_ + 1, end - at_ - 1);
    if (word.find('\\') != std::string_view::npos) fail("a word without escapes");
    at_ = end + 1;
    return std::string(word);
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() {
    while (peek() == ' ' || peek() == '\n' || peek() == '\t') ++at_;
  }
  bool accept(char c) {
    skip_space();
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(std::string("'") + c + "'");
  }
  [[noreturn]] void fail(const std::string& expected) const {
    throw_error(ErrorCode::Corrupt, "malformed .npy header: expected ", expected, " at byte ", at_,
                " of its dictionary");
  }

  std::string_view text_;
  size_t at_ = 0;
  std::optional<std::string> descr_;
  std::optional<bool> fortran_order_;
  std::optional<Shape> shape_;
};

}  // namespace

Header parse_header(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.size() < 10 || !text.starts_with(kMagic)) {
    throw_error(ErrorCode::Corrupt, "not a .npy file: it does not begin with \\x93NUMPY");
  }
  const int version = static_cast<unsigned char>(text[6]);
  if (version < 1 || version > 3) {
    throw_error(ErrorCode::Unsupported, ".npy format version ", version,
                " is not supported; versions 1 to 3 are");
  }
  const size_t length_bytes = version == 1 ? 2 : 4;
  if (text.size() < 8 + length_bytes) throw_error(ErrorCode::Corrupt, "truncated .npy header");
  size_t length = 0;
  for (size_t i = 0; i < length_bytes; ++i) {
    length |= size_t{static_cast<unsigned char>(text[8 + i])} << (8 * i);
  }
  const size_t start = 8 + length_bytes;
  if (length > text.size() - start) {
    throw_error(ErrorCode::Corrupt, "truncated .npy header: it claims ", length, " bytes and ",
                text.size() - start, " follow");
  }
  Header header = LiteralParser(text.substr(start, length)).parse();
  header.size = start + length;
  return header;
}

}  // namespace quern::npy
