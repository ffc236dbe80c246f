// Jinja's filters.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "formats/chat_template/interpreter.h"
#include "formats/chat_template/strings.h"
#include "formats/tokenizer/unicode_data.h"
#include "formats/tokenizer/utf8.h"
#include "ir/error.h"

namespace quern::chat_template {
namespace {

using Kind = Value::Kind;

Value trim(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const std::string text = to_text(input);
  const Value chars = arguments.get(0, "chars", Value::none());
  const std::string characters = chars.is(Kind::None) ? "" : to_text(chars);
  return interpreter.text(std::string(strip_right(strip_left(text, characters), characters)));
}

Value tojson(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  JsonStyle style;
  style.ensure_ascii = arguments.get(0, "ensure_ascii", Value::boolean(false)).truth();
  const Value indent = arguments.get(1, "indent", Value::none());
  if (indent.is(Kind::Int)) style.indent = std::min<int64_t>(indent.as_int(), 64);
  const Value separators = arguments.get(2, "separators", Value::none());
  if (separators.is_sequence() && separators.items().size() == 2) {
    style.item_separator = to_text(separators.items()[0]);
    style.key_separator = to_text(separators.items()[1]);
  }
  style.sort_keys = arguments.get(3, "sort_keys", Value::boolean(false)).truth();
  if (input.is(Kind::Undefined)) interpreter.fail(input.hint() + " is undefined");
  return interpreter.text(to_json(input, style));
}

Value length(Interpreter& interpreter, const Value& input, Arguments&) {
  switch (input.kind()) {
    case Kind::Undefined:
      return Value::integer(0);
    case Kind::String:
      interpreter.charge(input.as_string().size() / 16);
      return Value::integer(static_cast<int64_t>(tokenizer::count_characters(input.as_string())));
    case Kind::List:
    case Kind::Tuple:
      return Value::integer(static_cast<int64_t>(input.items().size()));
    case Kind::Dict:
      return Value::integer(static_cast<int64_t>(input.entries().entries.size()));
    default:
      interpreter.fail("a value of type " + type_name(input) + " has no length");
  }
}

Value default_value(Interpreter&, const Value& input, Arguments& arguments) {
  const bool also_false = arguments.get(1, "boolean", Value::boolean(false)).truth();
  if (!input.is(Kind::Undefined) && !(also_false && !input.truth())) return input;
  return arguments.get(0, "default_value", Value::string(""));
}

// An attribute by a path like "function.name" or "0".
Value attribute_of(Interpreter& interpreter, Value value, const Value& path) {
  if (path.is(Kind::Int)) return interpreter.item(value, path);
  for (const std::string& part : split_at(to_text(path), ".", -1)) {
    const bool number = !part.empty() && part.size() < 10 &&
                        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    value = interpreter.item(value, number ? Value::integer(std::stoll(part)) : Value::string(part));
  }
  return value;
}

// What items are compared by.
Value key_of(Interpreter& interpreter, const Value& item, const Value& attribute, bool case_sensitive) {
  Value key = attribute.is(Kind::None) ? item : attribute_of(interpreter, item, attribute);
  return key.is(Kind::String) && !case_sensitive ? Value::string(to_lower_case(key.as_string())) : key;
}

Value join(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const std::string separator = to_text(arguments.get(0, "d", Value::string("")));
  const Value attribute = arguments.get(1, "attribute", Value::none());
  std::string out;
  bool first = true;
  for (const Value& item : interpreter.items_of(input)) {
    const std::string text =
        to_text(attribute.is(Kind::None) ? item : attribute_of(interpreter, item, attribute));
    interpreter.charge((separator.size() + text.size()) / 16);
    if (!first) out += separator;
    first = false;
    out += text;
  }
  return interpreter.text(std::move(out));
}

Value upper(Interpreter& interpreter, const Value& input, Arguments&) {
  return interpreter.text(to_upper_case(to_text(input)));
}
Value lower(Interpreter& interpreter, const Value& input, Arguments&) {
  return interpreter.text(to_lower_case(to_text(input)));
}
Value capitalize(Interpreter& interpreter, const Value& input, Arguments&) {
  return interpreter.text(capitalized(to_text(input)));
}

// Words begin behind spaces, hyphens and opening brackets.
Value title(Interpreter& interpreter, const Value& input, Arguments&) {
  const std::string text = to_text(input);
  std::string out;
  std::string word;
  for (size_t at = 0; at < text.size();) {
    const std::string character = text.substr(at, tokenizer::utf8_length(text[at]));
    const char32_t c = tokenizer::code_point_at(character.data());
    at += character.size();
    if (is_python_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<') {
      out += capitalized(word) + character;
      word.clear();
    } else {
      word += character;
    }
  }
  return interpreter.text(out + capitalized(word));
}

Value replace(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const std::string text = to_text(input);
  const std::string from = to_text(arguments.get(0, "old", Value()));
  const std::string to = to_text(arguments.get(1, "new", Value()));
  const Value count = arguments.get(2, "count", Value::none());
  const size_t places = from.empty() ? text.size() + 1 : text.size() / from.size();
  interpreter.charge(text.size() / 16 + places * to.size() / 16);
  return interpreter.text(replaced(text, from, to, count.is(Kind::Int) ? count.as_int() : -1));
}

Value items(Interpreter& interpreter, const Value& input, Arguments&) {
  if (input.is(Kind::Undefined)) return Value::list({});
  if (!input.is(Kind::Dict))
    interpreter.fail("the filter items needs a dict, not a value of type " + type_name(input));
  List pairs;
  for (const auto& [key, value] : input.entries().entries) pairs.push_back(Value::tuple({key, value}));
  return interpreter.list(std::move(pairs));
}

Value first(Interpreter& interpreter, const Value& input, Arguments&) {
  const List all = interpreter.items_of(input);
  return all.empty() ? Value::undefined("the first item of nothing") : all.front();
}
Value last(Interpreter& interpreter, const Value& input, Arguments&) {
  const List all = interpreter.items_of(input);
  return all.empty() ? Value::undefined("the last item of nothing") : all.back();
}
Value list(Interpreter& interpreter, const Value& input, Arguments&) {
  return Value::list(interpreter.items_of(input));
}
Value string(Interpreter& interpreter, const Value& input, Arguments&) {
  return interpreter.text(to_text(input));
}
Value same(Interpreter&, const Value& input, Arguments&) {
  return input;
}

std::optional<double> read_real(const std::string& text) {
  const std::string_view stripped = strip_right(strip_left(text, ""), "");
  const char* begin = stripped.data() + (stripped.starts_with('+') ? 1 : 0);
  double value = 0.0;
  const auto result = std::from_chars(begin, stripped.data() + stripped.size(), value);
  if (stripped.empty() || result.ec != std::errc() || result.ptr != stripped.data() + stripped.size())
    return std::nullopt;
  return value;
}

Value to_int(Interpreter&, const Value& input, Arguments& arguments) {
  const Value otherwise = arguments.get(0, "default", Value::integer(0));
  if (input.is(Kind::Int) || input.is(Kind::Bool)) return Value::integer(input.as_int());
  std::optional<double> real;
  if (input.is(Kind::Float)) real = input.as_real();
  if (input.is(Kind::String)) {
    const std::string_view text = strip_right(strip_left(input.as_string(), ""), "");
    const Value base = arguments.get(1, "base", Value::integer(10));
    int64_t value = 0;
    const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
    const int64_t digits_base = base.is(Kind::Int) ? base.as_int() : 10;
    if (digits_base >= 2 && digits_base <= 36) {
      const auto result =
          std::from_chars(begin, text.data() + text.size(), value, static_cast<int>(digits_base));
      if (!text.empty() && result.ec == std::errc() && result.ptr == text.data() + text.size())
        return Value::integer(value);
    }
    real = read_real(input.as_string());
  }
  if (!real || !std::isfinite(*real) || std::abs(*real) >= 9.2e18) return otherwise;
  return Value::integer(static_cast<int64_t>(*real));
}

Value to_float(Interpreter&, const Value& input, Arguments& arguments) {
  if (input.is_number()) return Value::real(input.as_real());
  const std::optional<double> real = input.is(Kind::String) ? read_real(input.as_string()) : std::nullopt;
  return real ? Value::real(*real) : arguments.get(0, "default", Value::real(0.0));
}

Value absolute(Interpreter& interpreter, const Value& input, Arguments&) {
  if (!input.is_number()) interpreter.fail("abs needs a number, not a value of type " + type_name(input));
  if (input.is(Kind::Float)) return Value::real(std::abs(input.as_real()));
  return input.as_int() < 0 ? interpreter.binary("-", Value::integer(0), input)
                            : Value::integer(input.as_int());
}

Value round(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  if (!input.is_number()) interpreter.fail("round needs a number, not a value of type " + type_name(input));
  const Value precision = arguments.get(0, "precision", Value::integer(0));
  const std::string method = to_text(arguments.get(1, "method", Value::string("common")));
  const int64_t digits = precision.is(Kind::Int) ? std::clamp<int64_t>(precision.as_int(), -300, 300) : 0;
  const double value = input.as_real();
  if (method == "common") {
    if (digits >= 0 && !input.is(Kind::Float)) return Value::integer(input.as_int());
    // Python rounds the exact decimal value; so does printing it.
    if (digits >= 0 && std::isfinite(value)) {
      char buffer[700];
      std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(digits), value);
      return Value::real(read_real(buffer).value_or(value));
    }
    const double scale = std::pow(10.0, static_cast<double>(-digits));
    return Value::real(std::nearbyint(value / scale) * scale);
  }
  const double scale = std::pow(10.0, static_cast<double>(digits));
  if (method == "ceil") return Value::real(std::ceil(value * scale) / scale);
  if (method == "floor") return Value::real(std::floor(value * scale) / scale);
  interpreter.fail("round has no method '" + method + "'");
}

// Stable, as Python's sort is. Keys are worked out once.
List sorted(Interpreter& interpreter, const List& all, const std::function<Value(const Value&)>& key,
            bool reverse) {
  std::vector<std::pair<Value, size_t>> keys;
  for (size_t i = 0; i < all.size(); ++i) keys.emplace_back(key(all[i]), i);
  interpreter.charge(all.size() * 20);
  try {
    std::stable_sort(keys.begin(), keys.end(), [&](const auto& a, const auto& b) {
      return reverse ? less(b.first, a.first) : less(a.first, b.first);
    });
  } catch (const Error& error) {
    interpreter.fail(error.message());
  }
  List result;
  for (const auto& [value, index] : keys) result.push_back(all[index]);
  return result;
}

Value sort(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const bool reverse = arguments.get(0, "reverse", Value::boolean(false)).truth();
  const bool case_sensitive = arguments.get(1, "case_sensitive", Value::boolean(false)).truth();
  const Value attribute = arguments.get(2, "attribute", Value::none());
  return Value::list(sorted(
      interpreter, interpreter.items_of(input),
      [&](const Value& item) { return key_of(interpreter, item, attribute, case_sensitive); }, reverse));
}

Value dictsort(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const bool case_sensitive = arguments.get(0, "case_sensitive", Value::boolean(false)).truth();
  const bool by_value = to_text(arguments.get(1, "by", Value::string("key"))) == "value";
  const bool reverse = arguments.get(2, "reverse", Value::boolean(false)).truth();
  Arguments none;
  const Value pairs = items(interpreter, input, none);
  return Value::list(sorted(
      interpreter, pairs.items(),
      [&](const Value& pair) {
        return key_of(interpreter, pair.items()[by_value ? 1 : 0], Value::none(), case_sensitive);
      },
      reverse));
}

Value reverse(Interpreter& interpreter, const Value& input, Arguments&) {
  List all = interpreter.items_of(input);
  std::reverse(all.begin(), all.end());
  if (!input.is(Kind::String)) return Value::list(std::move(all));
  std::string out;
  for (const Value& character : all) out += character.as_string();
  return interpreter.text(std::move(out));
}

Value unique(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const bool case_sensitive = arguments.get(0, "case_sensitive", Value::boolean(false)).truth();
  const Value attribute = arguments.get(1, "attribute", Value::none());
  List keys;
  List result;
  for (const Value& item : interpreter.items_of(input)) {
    const Value key = key_of(interpreter, item, attribute, case_sensitive);
    interpreter.charge(keys.size());
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    keys.push_back(key);
    result.push_back(item);
  }
  return Value::list(std::move(result));
}

// Takes the first positional argument away.
Value take_first(Interpreter& interpreter, Arguments& arguments, const char* filter) {
  if (arguments.positional.empty())
    interpreter.fail(std::string("the filter ") + filter + " lacks an argument");
  Value value = arguments.positional.front();
  arguments.positional.erase(arguments.positional.begin());
  return value;
}

Value map(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  List result;
  if (arguments.positional.empty()) {
    const Value attribute = arguments.get(0, "attribute", Value::none());
    const std::optional<Value> otherwise = arguments.find(1, "default");
    if (attribute.is(Kind::None)) interpreter.fail("the filter map lacks a filter or an attribute");
    for (const Value& item : interpreter.items_of(input)) {
      Value value = attribute_of(interpreter, item, attribute);
      result.push_back(value.is(Kind::Undefined) && otherwise ? *otherwise : value);
    }
    return Value::list(std::move(result));
  }
  const std::string name = to_text(take_first(interpreter, arguments, "map"));
  for (const Value& item : interpreter.items_of(input)) {
    Arguments own = arguments;
    result.push_back(interpreter.call_filter(name, item, own));
  }
  return Value::list(std::move(result));
}

List selected(Interpreter& interpreter, const Value& input, Arguments& arguments, bool by_attribute,
              bool wanted) {
  const Value attribute = by_attribute ? take_first(interpreter, arguments, "selectattr") : Value::none();
  const bool has_test = !arguments.positional.empty();
  const std::string name = has_test ? to_text(take_first(interpreter, arguments, "select")) : "";
  List result;
  for (const Value& item : interpreter.items_of(input)) {
    const Value value = by_attribute ? attribute_of(interpreter, item, attribute) : item;
    Arguments own = arguments;
    if ((has_test ? interpreter.call_test(name, value, own) : value.truth()) == wanted)
      result.push_back(item);
  }
  return result;
}

Value select(Interpreter& i, const Value& input, Arguments& a) {
  return Value::list(selected(i, input, a, false, true));
}
Value reject(Interpreter& i, const Value& input, Arguments& a) {
  return Value::list(selected(i, input, a, false, false));
}
Value selectattr(Interpreter& i, const Value& input, Arguments& a) {
  return Value::list(selected(i, input, a, true, true));
}
Value rejectattr(Interpreter& i, const Value& input, Arguments& a) {
  return Value::list(selected(i, input, a, true, false));
}

Value sum(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Value attribute = arguments.get(0, "attribute", Value::none());
  Value total = arguments.get(1, "start", Value::integer(0));
  for (const Value& item : interpreter.items_of(input)) {
    total = interpreter.binary("+", total,
                               attribute.is(Kind::None) ? item : attribute_of(interpreter, item, attribute));
  }
  return total;
}

Value extreme(Interpreter& interpreter, const Value& input, Arguments& arguments, bool largest) {
  const bool case_sensitive = arguments.get(0, "case_sensitive", Value::boolean(false)).truth();
  const Value attribute = arguments.get(1, "attribute", Value::none());
  const List all = sorted(
      interpreter, interpreter.items_of(input),
      [&](const Value& item) { return key_of(interpreter, item, attribute, case_sensitive); }, largest);
  return all.empty() ? Value::undefined("the largest or smallest item of nothing") : all.front();
}
Value minimum(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  return extreme(interpreter, input, arguments, false);
}
Value maximum(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  return extreme(interpreter, input, arguments, true);
}

Value indent(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Value width = arguments.get(0, "width", Value::integer(4));
  if (width.is(Kind::Int)) interpreter.charge(static_cast<size_t>(std::max<int64_t>(0, width.as_int())));
  const std::string indention =
      width.is(Kind::Int) ? std::string(static_cast<size_t>(std::max<int64_t>(0, width.as_int())), ' ')
                          : to_text(width);
  const bool first_line = arguments.get(1, "first", Value::boolean(false)).truth();
  const bool blank = arguments.get(2, "blank", Value::boolean(false)).truth();
  std::string out = first_line ? indention : "";
  bool first = true;
  for (const std::string& line : split_lines(to_text(input) + "\n", false)) {
    interpreter.charge((indention.size() + line.size()) / 16);
    if (!first) out += "\n";
    if (!first && (blank || !line.empty())) out += indention;
    first = false;
    out += line;
  }
  return interpreter.text(std::move(out));
}

Value escape(Interpreter& interpreter, const Value& input, Arguments&) {
  std::string out;
  for (const char c : to_text(input)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out.push_back(c);
    }
  }
  return interpreter.text(std::move(out));
}

Value wordcount(Interpreter& interpreter, const Value& input, Arguments&) {
  const std::string text = to_text(input);
  interpreter.charge(text.size() / 16);
  int64_t words = 0;
  bool within = false;
  for (const char* p = text.data(); p != text.data() + text.size();) {
    const char32_t c = tokenizer::next_code_point(p);
    const bool word = tokenizer::has_property(c, tokenizer::kWordCharacter);
    words += word && !within ? 1 : 0;
    within = word;
  }
  return Value::integer(words);
}

Value attr(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  return interpreter.attribute(input, to_text(arguments.get(0, "name", Value())));
}

Value printf_format(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  return interpreter.binary("%", Value::string(to_text(input)), Value::tuple(arguments.positional));
}

}  // namespace

FilterFunction find_filter(const std::string& name) {
  static const std::map<std::string, FilterFunction> filters = {
      {"trim", trim},
      {"tojson", tojson},
      {"length", length},
      {"count", length},
      {"default", default_value},
      {"d", default_value},
      {"join", join},
      {"upper", upper},
      {"lower", lower},
      {"capitalize", capitalize},
      {"title", title},
      {"replace", replace},
      {"items", items},
      {"first", first},
      {"last", last},
      {"list", list},
      {"string", string},
      {"safe", same},
      {"int", to_int},
      {"float", to_float},
      {"abs", absolute},
      {"round", round},
      {"sort", sort},
      {"dictsort", dictsort},
      {"reverse", reverse},
      {"unique", unique},
      {"map", map},
      {"select", select},
      {"reject", reject},
      {"selectattr", selectattr},
      {"rejectattr", rejectattr},
      {"sum", sum},
      {"min", minimum},
      {"max", maximum},
      {"indent", indent},
      {"escape", escape},
      {"e", escape},
      {"forceescape", escape},
      {"wordcount", wordcount},
      {"attr", attr},
      {"format", printf_format},
  };
  const auto found = filters.find(name);
  return found == filters.end() ? nullptr : found->second;
}

}  // namespace quern::chat_template
