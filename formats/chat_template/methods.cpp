// The methods of values, and the attributes of `loop`.
#include <algorithm>
#include <map>

#include "formats/chat_template/interpreter.h"
#include "formats/chat_template/strings.h"
#include "formats/tokenizer/unicode_data.h"
#include "formats/tokenizer/utf8.h"
#include "ir/error.h"

namespace quern::chat_template {
namespace {

using Kind = Value::Kind;

std::string text_argument(Interpreter& interpreter, const Arguments& arguments, size_t index,
                          const char* name) {
  const Value value = arguments.get(index, name, Value());
  if (!value.is(Kind::String)) {
    interpreter.fail(std::string("'") + name + "' needs to be a text, not a value of type " +
                     type_name(value));
  }
  return value.as_string();
}

int64_t int_argument(Interpreter& interpreter, const Arguments& arguments, size_t index, const char* name,
                     int64_t otherwise) {
  const Value value = arguments.get(index, name, Value::integer(otherwise));
  if (!value.is(Kind::Int) && !value.is(Kind::Bool))
    interpreter.fail(std::string("'") + name + "' needs to be a whole number");
  return value.as_int();
}

List texts(std::vector<std::string> parts) {
  List items;
  for (std::string& part : parts) items.push_back(Value::string(std::move(part)));
  return items;
}

// A text or none.
std::string optional_text(Interpreter& interpreter, const Arguments& arguments, size_t index,
                          const char* name) {
  const Value value = arguments.get(index, name, Value::none());
  if (value.is(Kind::None)) return "";
  return text_argument(interpreter, arguments, index, name);
}

Value strip(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const std::string characters = optional_text(interpreter, arguments, 0, "chars");
  return interpreter.text(std::string(strip_right(strip_left(self.as_string(), characters), characters)));
}
Value lstrip(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  return interpreter.text(
      std::string(strip_left(self.as_string(), optional_text(interpreter, arguments, 0, "chars"))));
}
Value rstrip(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  return interpreter.text(
      std::string(strip_right(self.as_string(), optional_text(interpreter, arguments, 0, "chars"))));
}

Value split(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const int64_t most = int_argument(interpreter, arguments, 1, "maxsplit", -1);
  interpreter.charge(self.as_string().size() / 16);
  if (arguments.get(0, "sep", Value::none()).is(Kind::None))
    return interpreter.list(texts(split_at_spaces(self.as_string(), most)));
  const std::string separator = text_argument(interpreter, arguments, 0, "sep");
  if (separator.empty()) interpreter.fail("split() at an empty text");
  return interpreter.list(texts(split_at(self.as_string(), separator, most)));
}

Value rsplit(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const int64_t most = int_argument(interpreter, arguments, 1, "maxsplit", -1);
  if (arguments.get(0, "sep", Value::none()).is(Kind::None)) {
    if (most >= 0) interpreter.fail("rsplit() at spaces with a limit is not supported");
    return interpreter.list(texts(split_at_spaces(self.as_string(), -1)));
  }
  const std::string separator = text_argument(interpreter, arguments, 0, "sep");
  if (separator.empty()) interpreter.fail("rsplit() at an empty text");
  return interpreter.list(texts(split_at_from_right(self.as_string(), separator, most)));
}

Value splitlines(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  return interpreter.list(
      texts(split_lines(self.as_string(), arguments.get(0, "keepends", Value::boolean(false)).truth())));
}

Value partition(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const std::string separator = text_argument(interpreter, arguments, 0, "sep");
  const std::string& text = self.as_string();
  const size_t at = separator.empty() ? std::string::npos : text.find(separator);
  if (at == std::string::npos) return Value::tuple({self, Value::string(""), Value::string("")});
  return Value::tuple({Value::string(text.substr(0, at)), Value::string(separator),
                       Value::string(text.substr(at + separator.size()))});
}

Value rpartition(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const std::string separator = text_argument(interpreter, arguments, 0, "sep");
  const std::string& text = self.as_string();
  const size_t at = separator.empty() ? std::string::npos : text.rfind(separator);
  if (at == std::string::npos) return Value::tuple({Value::string(""), Value::string(""), self});
  return Value::tuple({Value::string(text.substr(0, at)), Value::string(separator),
                       Value::string(text.substr(at + separator.size()))});
}

template <class Matches>
Value any_affix(Interpreter& interpreter, Arguments& arguments, const char* name, Matches&& matches) {
  const Value wanted = arguments.get(0, name, Value());
  if (wanted.is(Kind::Tuple)) {
    return Value::boolean(std::any_of(wanted.items().begin(), wanted.items().end(), [&](const Value& item) {
      return item.is(Kind::String) && matches(item.as_string());
    }));
  }
  return Value::boolean(matches(text_argument(interpreter, arguments, 0, name)));
}

Value startswith(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  return any_affix(interpreter, arguments, "prefix",
                   [&](const std::string& affix) { return self.as_string().starts_with(affix); });
}
Value endswith(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  return any_affix(interpreter, arguments, "suffix",
                   [&](const std::string& affix) { return self.as_string().ends_with(affix); });
}
Value removeprefix(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const std::string prefix = text_argument(interpreter, arguments, 0, "prefix");
  return self.as_string().starts_with(prefix) ? interpreter.text(self.as_string().substr(prefix.size()))
                                              : self;
}
Value removesuffix(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const std::string suffix = text_argument(interpreter, arguments, 0, "suffix");
  if (suffix.empty() || !self.as_string().ends_with(suffix)) return self;
  return interpreter.text(self.as_string().substr(0, self.as_string().size() - suffix.size()));
}

Value upper(Interpreter& interpreter, const Value& self, Arguments&) {
  return interpreter.text(to_upper_case(self.as_string()));
}
Value lower(Interpreter& interpreter, const Value& self, Arguments&) {
  return interpreter.text(to_lower_case(self.as_string()));
}
Value title(Interpreter& interpreter, const Value& self, Arguments&) {
  return interpreter.text(to_title_case(self.as_string()));
}
Value capitalize(Interpreter& interpreter, const Value& self, Arguments&) {
  return interpreter.text(capitalized(self.as_string()));
}

Value replace(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const std::string from = text_argument(interpreter, arguments, 0, "old");
  const std::string to = text_argument(interpreter, arguments, 1, "new");
  // What it may grow to is checked before it does.
  const size_t places = from.empty() ? self.as_string().size() + 1 : self.as_string().size() / from.size();
  interpreter.charge(self.as_string().size() / 16 + places * to.size() / 16);
  return interpreter.text(
      replaced(self.as_string(), from, to, int_argument(interpreter, arguments, 2, "count", -1)));
}

Value find_from(Interpreter& interpreter, const Value& self, Arguments& arguments, bool from_right) {
  const std::string wanted = text_argument(interpreter, arguments, 0, "sub");
  const std::string& text = self.as_string();
  const CodePoints characters(text);
  interpreter.charge(text.size() / 16);
  const int64_t start = std::max<int64_t>(0, int_argument(interpreter, arguments, 1, "start", 0));
  if (start > static_cast<int64_t>(characters.size())) return Value::integer(-1);
  const size_t first = characters.byte_of(static_cast<size_t>(start));
  size_t at = from_right ? text.rfind(wanted) : text.find(wanted, first);
  if (at != std::string::npos && at < first) at = std::string::npos;
  return Value::integer(at == std::string::npos ? -1 : static_cast<int64_t>(characters.index_of(at)));
}
Value find(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  return find_from(interpreter, self, arguments, false);
}
Value rfind(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  return find_from(interpreter, self, arguments, true);
}
Value text_index(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  Value found = find(interpreter, self, arguments);
  if (found.as_int() < 0) interpreter.fail("index() didn't find its text");
  return found;
}

Value text_count(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const std::string wanted = text_argument(interpreter, arguments, 0, "sub");
  interpreter.charge(self.as_string().size() / 16);
  if (wanted.empty()) return Value::integer(static_cast<int64_t>(CodePoints(self.as_string()).size()) + 1);
  return Value::integer(static_cast<int64_t>(split_at(self.as_string(), wanted, -1).size()) - 1);
}

Value join(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  std::string out;
  bool first = true;
  for (const Value& item : interpreter.items_of(arguments.get(0, "iterable", Value()))) {
    if (!item.is(Kind::String))
      interpreter.fail("join() needs texts, not a value of type " + type_name(item));
    interpreter.charge((self.as_string().size() + item.as_string().size()) / 16);
    if (!first) out += self.as_string();
    first = false;
    out += item.as_string();
  }
  return interpreter.text(std::move(out));
}

// The width that a text is filled up to, checked.
size_t fill_of(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const int64_t width = int_argument(interpreter, arguments, 0, "width", 0);
  const auto size = static_cast<int64_t>(CodePoints(self.as_string()).size());
  const auto fill = static_cast<size_t>(std::max<int64_t>(0, width - size));
  interpreter.charge(fill);
  return fill;
}
std::string fill_text(Interpreter& interpreter, const Arguments& arguments, size_t count) {
  const std::string filler =
      arguments.positional.size() > 1 ? text_argument(interpreter, arguments, 1, "fillchar") : " ";
  std::string out;
  for (size_t i = 0; i < count; ++i) out += filler;
  return out;
}
Value ljust(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  return interpreter.text(self.as_string() +
                          fill_text(interpreter, arguments, fill_of(interpreter, self, arguments)));
}
Value rjust(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  return interpreter.text(fill_text(interpreter, arguments, fill_of(interpreter, self, arguments)) +
                          self.as_string());
}
Value zfill(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const std::string& text = self.as_string();
  const size_t sign = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
  const std::string zeros(fill_of(interpreter, self, arguments), '0');
  return interpreter.text(text.substr(0, sign) + zeros + text.substr(sign));
}

template <class Predicate>
Value all_characters(const Value& self, Predicate&& predicate) {
  const std::string& text = self.as_string();
  for (const char* p = text.data(); p != text.data() + text.size();) {
    if (!predicate(tokenizer::next_code_point(p))) return Value::boolean(false);
  }
  return Value::boolean(!text.empty());
}

bool is_letter(char32_t c) {
  const tokenizer::Category category = tokenizer::category_of(c);
  return category >= tokenizer::Category::Ll && category <= tokenizer::Category::Lu;
}
bool is_digit(char32_t c) {
  return tokenizer::category_of(c) == tokenizer::Category::Nd;
}

Value isdigit(Interpreter&, const Value& self, Arguments&) {
  return all_characters(self, is_digit);
}
Value isalpha(Interpreter&, const Value& self, Arguments&) {
  return all_characters(self, is_letter);
}
Value isalnum(Interpreter&, const Value& self, Arguments&) {
  return all_characters(self, [](char32_t c) { return is_letter(c) || is_digit(c); });
}
Value isspace(Interpreter&, const Value& self, Arguments&) {
  return all_characters(self, is_python_space);
}
Value isupper(Interpreter&, const Value& self, Arguments&) {
  const std::string& text = self.as_string();
  return Value::boolean(to_upper_case(text) == text && to_lower_case(text) != text);
}
Value islower(Interpreter&, const Value& self, Arguments&) {
  const std::string& text = self.as_string();
  return Value::boolean(to_lower_case(text) == text && to_upper_case(text) != text);
}

// str.format() with {}, {0} and {name}, as far as no format is given within the braces.
Value format(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const std::string& text = self.as_string();
  std::string out;
  size_t next = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if ((c == '{' || c == '}') && at + 1 < text.size() && text[at + 1] == c) {
      out.push_back(c);
      ++at;
    } else if (c == '{') {
      const size_t close = text.find('}', at);
      const std::string field = close == std::string::npos ? ":" : text.substr(at + 1, close - at - 1);
      if (field.find_first_of(":!.[") != std::string::npos)
        interpreter.fail("format() supports {}, {0} and {name} alone");
      const bool numbered = !field.empty() && std::all_of(field.begin(), field.end(),
                                                          [](char d) { return d >= '0' && d <= '9'; });
      const size_t index = numbered && field.size() < 9 ? std::stoul(field)
                           : field.empty()              ? next++
                                                        : arguments.positional.size();
      const std::optional<Value> value = arguments.find(index, field);
      if (!value) interpreter.fail("format() has no value for '{" + field + "}'");
      out += to_text(*value);
      at = close;
    } else {
      out.push_back(c);
    }
    if (at % 64 == 0) interpreter.charge(out.size() / 1024);
  }
  return interpreter.text(std::move(out));
}

Value dict_items(Interpreter& interpreter, const Value& self, Arguments&) {
  List items;
  for (const auto& [key, value] : self.entries().entries) items.push_back(Value::tuple({key, value}));
  return interpreter.list(std::move(items));
}
Value dict_keys(Interpreter& interpreter, const Value& self, Arguments&) {
  return Value::list(interpreter.items_of(self));
}
Value dict_values(Interpreter& interpreter, const Value& self, Arguments&) {
  List items;
  for (const auto& [key, value] : self.entries().entries) items.push_back(value);
  return interpreter.list(std::move(items));
}
Value dict_get(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Value key = arguments.get(0, "key", Value());
  if (!interpreter.contains(self, key)) return arguments.get(1, "default", Value::none());
  return *self.entries().find(key);
}
Value copy(Interpreter&, const Value& self, Arguments&) {
  return self;
}
Value refuse(Interpreter& interpreter, const Value& self, Arguments&) {
  interpreter.fail("a template can't change a value of type " + type_name(self));
}

Value list_index(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  interpreter.charge(self.items().size());
  const auto found = std::find(self.items().begin(), self.items().end(), arguments.get(0, "value", Value()));
  if (found == self.items().end()) interpreter.fail("index() didn't find its value");
  return Value::integer(found - self.items().begin());
}
Value list_count(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  interpreter.charge(self.items().size());
  return Value::integer(
      std::count(self.items().begin(), self.items().end(), arguments.get(0, "value", Value())));
}

using Methods = std::map<std::string, MethodFunction>;

const Methods& text_methods() {
  static const Methods methods = {
      {"strip", strip},
      {"lstrip", lstrip},
      {"rstrip", rstrip},
      {"split", split},
      {"rsplit", rsplit},
      {"splitlines", splitlines},
      {"partition", partition},
      {"rpartition", rpartition},
      {"startswith", startswith},
      {"endswith", endswith},
      {"removeprefix", removeprefix},
      {"removesuffix", removesuffix},
      {"upper", upper},
      {"lower", lower},
      {"title", title},
      {"capitalize", capitalize},
      {"replace", replace},
      {"find", find},
      {"rfind", rfind},
      {"index", text_index},
      {"count", text_count},
      {"join", join},
      {"ljust", ljust},
      {"rjust", rjust},
      {"zfill", zfill},
      {"isdigit", isdigit},
      {"isalpha", isalpha},
      {"isalnum", isalnum},
      {"isspace", isspace},
      {"isupper", isupper},
      {"islower", islower},
      {"format", format},
  };
  return methods;
}

const Methods& dict_methods() {
  static const Methods methods = {
      {"items", dict_items}, {"keys", dict_keys},    {"values", dict_values}, {"get", dict_get},
      {"copy", copy},        {"update", refuse},     {"pop", refuse},         {"popitem", refuse},
      {"clear", refuse},     {"setdefault", refuse},
  };
  return methods;
}

const Methods& list_methods() {
  static const Methods methods = {
      {"index", list_index}, {"count", list_count}, {"copy", copy},      {"append", refuse},
      {"extend", refuse},    {"insert", refuse},    {"pop", refuse},     {"remove", refuse},
      {"clear", refuse},     {"sort", refuse},      {"reverse", refuse},
  };
  return methods;
}

}  // namespace

MethodFunction find_method(const Value& self, const std::string& name) {
  const Methods* methods = self.is(Kind::String) ? &text_methods()
                           : self.is(Kind::Dict) ? &dict_methods()
                           : self.is_sequence()  ? &list_methods()
                                                 : nullptr;
  if (methods == nullptr) return nullptr;
  const auto found = methods->find(name);
  return found == methods->end() ? nullptr : found->second;
}

Value loop_attribute(Interpreter& interpreter, const Loop& loop, const std::string& name) {
  const auto index = static_cast<int64_t>(loop.index);
  const auto length = static_cast<int64_t>(loop.items->size());
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "revindex") return Value::integer(length - index);
  if (name == "revindex0") return Value::integer(length - index - 1);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 == length);
  if (name == "length") return Value::integer(length);
  // Deeper are recursive loops alone, which the parser refuses.
  if (name == "depth") return Value::integer(1);
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem")
    return index > 0 ? (*loop.items)[loop.index - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem")
    return index + 1 < length ? (*loop.items)[loop.index + 1] : Value::undefined("there is no next item");
  if (name == "cycle") {
    return Value::function(
        {name, [index](Interpreter& running, Arguments& arguments) {
           if (arguments.positional.empty()) running.fail("cycle() has nothing to choose from");
           return arguments.positional[static_cast<size_t>(index) % arguments.positional.size()];
         }});
  }
  interpreter.fail("'loop." + name + "' is not supported");
}

}  // namespace quern::chat_template
