// Values as text: Python's str(), repr() and json.dumps().
#include <algorithm>
#include <charconv>
#include <cmath>

#include "formats/chat_template/value.h"
#include "formats/tokenizer/unicode_data.h"
#include "formats/tokenizer/utf8.h"
#include "ir/error.h"

namespace quern::chat_template {
namespace {

using tokenizer::append_utf8;
using tokenizer::next_code_point;

void append_hex(std::string& out, char32_t c, int digits) {
  constexpr char kDigits[] = "0123456789abcdef";
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out.push_back(kDigits[c >> shift & 0xF]);
}

// Python's str.isprintable().
bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (tokenizer::category_of(c)) {
    case tokenizer::Category::Cc:
    case tokenizer::Category::Cf:
    case tokenizer::Category::Cn:
    case tokenizer::Category::Co:
    case tokenizer::Category::Cs:
    case tokenizer::Category::Zl:
    case tokenizer::Category::Zp:
    case tokenizer::Category::Zs:
      return false;
    default:
      return true;
  }
}

std::string repr_of_string(const std::string& text) {
  const bool has_single = text.find('\'') != std::string::npos;
  const char quote = has_single && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  const char* end = text.data() + text.size();
  for (const char* p = text.data(); p != end;) {
    const char32_t c = next_code_point(p);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out.push_back('\\');
      out.push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      append_utf8(out, c);
    } else {
      out += c < 0x100 ? "\\x" : c < 0x10000 ? "\\u" : "\\U";
      append_hex(out, c, c < 0x100 ? 2 : c < 0x10000 ? 4 : 8);
    }
  }
  out.push_back(quote);
  return out;
}

std::string repr_of_items(const List& items) {
  std::string out;
  for (const Value& item : items) out += (out.empty() ? "" : ", ") + to_repr(item);
  return out;
}

std::string repr_of_dict(const Dict& dict) {
  std::string out = "{";
  for (const auto& [key, value] : dict.entries) {
    out += (out.size() == 1 ? "" : ", ") + to_repr(key) + ": " + to_repr(value);
  }
  return out + "}";
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {
    if (style_.item_separator.empty()) style_.item_separator = style.indent ? "," : ", ";
    if (style_.key_separator.empty()) style_.key_separator = ": ";
  }

  std::string write(const Value& value) {
    append(value);
    return std::move(out_);
  }

 private:
  void append(const Value& value) {
    switch (value.kind()) {
      case Value::Kind::None:
        out_ += "null";
        return;
      case Value::Kind::Bool:
        out_ += value.truth() ? "true" : "false";
        return;
      case Value::Kind::Int:
        out_ += std::to_string(value.as_int());
        return;
      case Value::Kind::Float:
        append_real(value.as_real());
        return;
      case Value::Kind::String:
        append_string(value.as_string());
        return;
      case Value::Kind::List:
      case Value::Kind::Tuple:
        append_items(value.items());
        return;
      case Value::Kind::Dict:
        append_dict(value.entries());
        return;
      default:
        throw_error(ErrorCode::BadData, "a value of type ", type_name(value), " has no JSON");
    }
  }

  void append_real(double value) {
    if (std::isnan(value)) {
      out_ += "NaN";
    } else if (std::isinf(value)) {
      out_ += value > 0 ? "Infinity" : "-Infinity";
    } else {
      out_ += real_to_text(value);
    }
  }

  void append_string(const std::string& text) {
    out_.push_back('"');
    const char* end = text.data() + text.size();
    for (const char* p = text.data(); p != end;) append_character(next_code_point(p));
    out_.push_back('"');
  }

  void append_character(char32_t c) {
    static constexpr std::pair<char32_t, const char*> kEscapes[] = {
        {'"', "\\\""}, {'\\', "\\\\"}, {'\n', "\\n"}, {'\r', "\\r"},
        {'\t', "\\t"}, {'\b', "\\b"},  {'\f', "\\f"}};
    for (const auto& [special, escape] : kEscapes) {
      if (c == special) {
        out_ += escape;
        return;
      }
    }
    if (c >= 0x20 && (c < 0x7F || !style_.ensure_ascii)) {
      append_utf8(out_, c);
    } else if (c < 0x10000) {
      out_ += "\\u";
      append_hex(out_, c, 4);
    } else {
      out_ += "\\u";
      append_hex(out_, 0xD800 + (c - 0x10000) / 0x400, 4);
      out_ += "\\u";
      append_hex(out_, 0xDC00 + (c - 0x10000) % 0x400, 4);
    }
  }

  void append_items(const List& items) {
    if (items.empty()) {
      out_ += "[]";
      return;
    }
    out_.push_back('[');
    ++depth_;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      break_line();
      append(items[i]);
    }
    --depth_;
    break_line();
    out_.push_back(']');
  }

  static std::string key_text(const Value& key) {
    switch (key.kind()) {
      case Value::Kind::String:
        return key.as_string();
      case Value::Kind::None:
        return "null";
      case Value::Kind::Bool:
        return key.truth() ? "true" : "false";
      case Value::Kind::Int:
      case Value::Kind::Float:
        return to_text(key);
      default:
        throw_error(ErrorCode::BadData, "a key of type ", type_name(key), " has no JSON");
    }
  }

  void append_dict(const Dict& dict) {
    if (dict.entries.empty()) {
      out_ += "{}";
      return;
    }
    auto entries = dict.entries;
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto& a, const auto& b) { return less(a.first, b.first); });
    }
    out_.push_back('{');
    ++depth_;
    bool first = true;
    for (const auto& [key, value] : entries) {
      if (!first) out_ += style_.item_separator;
      first = false;
      break_line();
      append_string(key_text(key));
      out_ += style_.key_separator;
      append(value);
    }
    --depth_;
    break_line();
    out_.push_back('}');
  }

  void break_line() {
    if (!style_.indent) return;
    out_.push_back('\n');
    out_.append(static_cast<size_t>(depth_ * std::max<int64_t>(0, *style_.indent)), ' ');
  }

  JsonStyle style_;
  std::string out_;
  int64_t depth_ = 0;
};

}  // namespace

// The shortest digits that read back as the same number; an exponent below -4 or from 16 on is written.
std::string real_to_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), end, exponent);
  const bool negative = text.front() == '-';
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (c != '-' && c != '.') digits.push_back(c);
  }
  std::string out = negative ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    out += digits.substr(0, 1);
    if (digits.size() > 1) out += "." + digits.substr(1);
    const std::string magnitude = std::to_string(std::abs(exponent));
    return out + (exponent < 0 ? "e-" : "e+") + (magnitude.size() < 2 ? "0" : "") + magnitude;
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string to_repr(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::Undefined:
      return "Undefined";
    case Value::Kind::None:
      return "None";
    case Value::Kind::Bool:
      return value.truth() ? "True" : "False";
    case Value::Kind::Int:
      return std::to_string(value.as_int());
    case Value::Kind::Float:
      return real_to_text(value.as_real());
    case Value::Kind::String:
      return repr_of_string(value.as_string());
    case Value::Kind::List:
      return "[" + repr_of_items(value.items()) + "]";
    case Value::Kind::Tuple:
      return "(" + repr_of_items(value.items()) + (value.items().size() == 1 ? ",)" : ")");
    case Value::Kind::Dict:
      return repr_of_dict(value.entries());
    case Value::Kind::Namespace:
      return "<Namespace " + repr_of_dict(value.entries()) + ">";
    case Value::Kind::Function:
      return "<function " + value.as_function().name + ">";
    case Value::Kind::Loop:
      return "<LoopContext>";
  }
  return "";
}

std::string to_text(const Value& value) {
  if (value.is(Value::Kind::String)) return value.as_string();
  if (value.is(Value::Kind::Undefined)) return "";
  return to_repr(value);
}

std::string to_json(const Value& value, const JsonStyle& style) {
  return JsonWriter(style).write(value);
}

}  // namespace quern::chat_template
