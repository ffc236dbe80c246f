// Jinja's tests, operators and global functions.
#include <algorithm>
#include <cmath>
#include <map>

#include "formats/chat_template/interpreter.h"
#include "formats/chat_template/strings.h"
#include "ir/error.h"

namespace quern::chat_template {
namespace {

using Kind = Value::Kind;

template <Kind kKind>
bool is_kind(Interpreter&, const Value& input, Arguments&) {
  return input.is(kKind);
}

bool is_defined(Interpreter&, const Value& input, Arguments&) {
  return !input.is(Kind::Undefined);
}
bool is_number(Interpreter&, const Value& input, Arguments&) {
  return input.is_number();
}
bool is_true(Interpreter&, const Value& input, Arguments&) {
  return input.is(Kind::Bool) && input.truth();
}
bool is_false(Interpreter&, const Value& input, Arguments&) {
  return input.is(Kind::Bool) && !input.truth();
}
bool is_sequence(Interpreter&, const Value& input, Arguments&) {
  return input.is_sequence() || input.is(Kind::String) || input.is(Kind::Dict);
}
bool is_iterable(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  return input.is(Kind::Undefined) || is_sequence(interpreter, input, arguments);
}

int64_t whole(Interpreter& interpreter, const Value& input) {
  if (!input.is(Kind::Int) && !input.is(Kind::Bool))
    interpreter.fail("needs a whole number, not a value of type " + type_name(input));
  return input.as_int();
}
bool is_even(Interpreter& interpreter, const Value& input, Arguments&) {
  return whole(interpreter, input) % 2 == 0;
}
bool is_odd(Interpreter& interpreter, const Value& input, Arguments&) {
  return whole(interpreter, input) % 2 != 0;
}
bool is_divisible(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const int64_t divisor = whole(interpreter, arguments.get(0, "num", Value()));
  if (divisor == 0) interpreter.fail("division by zero");
  return divisor == -1 || whole(interpreter, input) % divisor == 0;
}

bool is_equal(Interpreter&, const Value& input, Arguments& arguments) {
  return input == arguments.get(0, "other", Value());
}
bool is_different(Interpreter&, const Value& input, Arguments& arguments) {
  return !(input == arguments.get(0, "other", Value()));
}
bool is_less(Interpreter& interpreter, const Value& a, const Value& b) {
  try {
    return less(a, b);
  } catch (const Error& error) {
    interpreter.fail(error.message());
  }
}
bool is_below(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  return is_less(interpreter, input, arguments.get(0, "other", Value()));
}
bool is_above(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  return is_less(interpreter, arguments.get(0, "other", Value()), input);
}
bool is_at_most(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  return !is_above(interpreter, input, arguments);
}
bool is_at_least(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  return !is_below(interpreter, input, arguments);
}
bool is_in(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  return interpreter.contains(arguments.get(0, "seq", Value()), input);
}
bool is_same(Interpreter&, const Value& input, Arguments& arguments) {
  const Value other = arguments.get(0, "other", Value());
  return input.kind() == other.kind() && input == other;
}
bool is_lower(Interpreter&, const Value& input, Arguments&) {
  const std::string text = to_text(input);
  return to_lower_case(text) == text && to_upper_case(text) != text;
}
bool is_upper(Interpreter&, const Value& input, Arguments&) {
  const std::string text = to_text(input);
  return to_upper_case(text) == text && to_lower_case(text) != text;
}
bool is_filter(Interpreter&, const Value& input, Arguments&) {
  return find_filter(to_text(input)) != nullptr;
}
bool is_test(Interpreter&, const Value& input, Arguments&) {
  return find_test(to_text(input)) != nullptr;
}
bool never(Interpreter&, const Value&, Arguments&) {
  return false;
}

Value repeated(Interpreter& interpreter, const Value& value, int64_t count) {
  const auto times = static_cast<size_t>(std::max<int64_t>(0, count));
  if (value.is(Kind::String)) {
    interpreter.charge(times);
    interpreter.charge(times * value.as_string().size() / 16);
    std::string out;
    for (size_t i = 0; i < times; ++i) out += value.as_string();
    return interpreter.text(std::move(out));
  }
  interpreter.charge(times);
  interpreter.charge(times * value.items().size());
  List items;
  for (size_t i = 0; i < times; ++i) items.insert(items.end(), value.items().begin(), value.items().end());
  return value.is(Kind::List) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

int64_t floor_divide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value power(Interpreter& interpreter, const Value& left, const Value& right) {
  const bool whole_numbers = !left.is(Kind::Float) && !right.is(Kind::Float) && right.as_int() >= 0;
  if (!whole_numbers) return Value::real(std::pow(left.as_real(), right.as_real()));
  int64_t result = 1;
  interpreter.charge(static_cast<size_t>(std::min<int64_t>(right.as_int(), 64)));
  for (int64_t i = 0; i < right.as_int() && result != 0 && !(result == 1 && i > 0 && left.as_int() == 1);
       ++i) {
    if (left.as_int() == -1 && i > 1) return Value::integer(right.as_int() % 2 == 0 ? 1 : -1);
    if (__builtin_mul_overflow(result, left.as_int(), &result)) interpreter.fail("a number is too large");
  }
  return Value::integer(result);
}

Value divide(Interpreter& interpreter, const std::string& name, const Value& left, const Value& right) {
  if (right.as_real() == 0.0) interpreter.fail("division by zero");
  if (name == "/") return Value::real(left.as_real() / right.as_real());
  if (left.is(Kind::Float) || right.is(Kind::Float)) {
    const double floor = std::floor(left.as_real() / right.as_real());
    if (name == "//") return Value::real(floor);
    const double rest = std::fmod(left.as_real(), right.as_real());
    return Value::real(rest != 0.0 && (rest < 0.0) != (right.as_real() < 0.0) ? rest + right.as_real()
                                                                              : rest);
  }
  if (right.as_int() == -1)
    return name == "//" ? interpreter.binary("-", Value::integer(0), left) : Value::integer(0);
  const int64_t quotient = floor_divide(left.as_int(), right.as_int());
  return Value::integer(name == "//" ? quotient : left.as_int() - quotient * right.as_int());
}

Value calculate(Interpreter& interpreter, const std::string& name, const Value& left, const Value& right) {
  if (name == "/" || name == "//" || name == "%") return divide(interpreter, name, left, right);
  if (name == "**") return power(interpreter, left, right);
  if (left.is(Kind::Float) || right.is(Kind::Float)) {
    const double a = left.as_real();
    const double b = right.as_real();
    return Value::real(name == "+" ? a + b : name == "-" ? a - b : a * b);
  }
  int64_t result = 0;
  const bool overflow = name == "+"   ? __builtin_add_overflow(left.as_int(), right.as_int(), &result)
                        : name == "-" ? __builtin_sub_overflow(left.as_int(), right.as_int(), &result)
                                      : __builtin_mul_overflow(left.as_int(), right.as_int(), &result);
  if (overflow) interpreter.fail("a number is too large");
  return Value::integer(result);
}

// "%s and %d" % values
Value printf_text(Interpreter& interpreter, const std::string& text, const Value& values) {
  const List arguments = values.is(Kind::Tuple) ? values.items() : List{values};
  std::string out;
  size_t next = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      out.push_back(text[at]);
      continue;
    }
    const size_t letter = text.find_first_not_of("0123456789.-+", at + 1);
    const std::string flags =
        text.substr(at + 1, letter == std::string::npos ? std::string::npos : letter - at - 1);
    const char kind = letter == std::string::npos ? '\0' : text[letter];
    at = letter;
    if (kind == '%') {
      out.push_back('%');
      continue;
    }
    if (next >= arguments.size()) interpreter.fail("a format has more places than values");
    const Value& value = arguments[next++];
    if (kind == 's' && flags.empty()) {
      out += to_text(value);
    } else if (kind == 'r' && flags.empty()) {
      out += to_repr(value);
    } else if ((kind == 'd' || kind == 'i' || kind == 'x' || kind == 'f') && value.is_number() &&
               flags.size() < 6) {
      char buffer[512];
      const bool real = kind == 'f';
      const std::string format = "%" + flags + (real ? "f" : kind == 'x' ? "llx" : "lld");
      const int length =
          real
              ? std::snprintf(buffer, sizeof buffer, format.c_str(), value.as_real())
              : std::snprintf(buffer, sizeof buffer, format.c_str(),
                              static_cast<long long>(value.as_real() == static_cast<double>(value.as_int()) ||
                                                             !value.is(Kind::Float)
                                                         ? value.as_int()
                                                         : static_cast<int64_t>(value.as_real())));
      out.append(buffer, std::min(sizeof buffer - 1, static_cast<size_t>(std::max(0, length))));
    } else {
      interpreter.fail("the format '%" + flags + std::string(1, kind) + "' of a value of type " +
                       type_name(value) + " is not supported");
    }
    interpreter.charge(1);
  }
  if (next < arguments.size() && values.is(Kind::Tuple))
    interpreter.fail("a format has fewer places than values");
  return interpreter.text(std::move(out));
}

Value range(Interpreter& interpreter, Arguments& arguments) {
  int64_t bounds[3] = {0, 0, 1};
  if (arguments.positional.empty() || arguments.positional.size() > 3)
    interpreter.fail("range() takes one to three numbers");
  for (size_t i = 0; i < arguments.positional.size(); ++i)
    bounds[i] = whole(interpreter, arguments.positional[i]);
  if (arguments.positional.size() == 1) std::swap(bounds[0], bounds[1]);
  if (bounds[2] == 0) interpreter.fail("range() has the step 0");
  List items;
  for (int64_t i = bounds[0]; bounds[2] > 0 ? i < bounds[1] : i > bounds[1];) {
    interpreter.charge(1);
    if (items.size() == 100000) interpreter.fail("range() has more than 100000 numbers");
    items.push_back(Value::integer(i));
    if (__builtin_add_overflow(i, bounds[2], &i)) break;
  }
  return Value::list(std::move(items));
}

std::shared_ptr<Dict> dict_of(Interpreter& interpreter, const Arguments& arguments, bool for_namespace) {
  auto dict = std::make_shared<Dict>();
  for (const Value& value : arguments.positional) {
    if (!value.is(Kind::Dict))
      interpreter.fail("a dict is made of a dict or of named values, not of a value of type " +
                       type_name(value));
    dict->entries.insert(dict->entries.end(), value.entries().entries.begin(), value.entries().entries.end());
    interpreter.charge(dict->entries.size());
  }
  for (const auto& [name, value] : arguments.named) dict->set(Value::string(name), value);
  for (const auto& [key, value] : dict->entries) {
    if (for_namespace && value.holds_namespace()) interpreter.fail("a namespace can't hold a namespace");
  }
  return dict;
}

Value make_namespace(Interpreter& interpreter, Arguments& arguments) {
  return Value::name_space(dict_of(interpreter, arguments, true));
}
Value make_dict(Interpreter& interpreter, Arguments& arguments) {
  return Value::dict(dict_of(interpreter, arguments, false));
}

Value raise_exception(Interpreter&, Arguments& arguments) {
  throw_error(ErrorCode::BadData,
              "the chat template refuses: ", to_text(arguments.get(0, "message", Value::string(""))));
}

Value strftime_now(Interpreter& interpreter, Arguments& arguments) {
  const std::string format = to_text(arguments.get(0, "format", Value::string("")));
  if (format.size() > 1000) interpreter.fail("a time format is too long");
  if (format.empty()) return Value::string("");
  const std::time_t now = interpreter.now();
  std::tm local{};
  localtime_r(&now, &local);
  std::string out(16384, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &local));
  return interpreter.text(std::move(out));
}

}  // namespace

Value Interpreter::binary(const std::string& name, const Value& left, const Value& right) {
  if (name == "~") {
    std::string joint = to_text(left);
    joint += to_text(right);
    return text(std::move(joint));
  }
  for (const Value* side : {&left, &right}) {
    if (side->is(Kind::Undefined)) fail(side->hint() + " is undefined");
  }
  if (left.is_number() && right.is_number()) return calculate(*this, name, left, right);
  if (name == "+" && left.is(Kind::String) && right.is(Kind::String))
    return text(left.as_string() + right.as_string());
  if (name == "+" && left.is_sequence() && left.kind() == right.kind()) {
    List items = left.items();
    items.insert(items.end(), right.items().begin(), right.items().end());
    charge(items.size());
    return left.is(Kind::List) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
  }
  if (name == "%" && left.is(Kind::String)) return printf_text(*this, left.as_string(), right);
  const auto repeats = [](const Value& value, const Value& count) {
    return (value.is(Kind::String) || value.is_sequence()) && (count.is(Kind::Int) || count.is(Kind::Bool));
  };
  if (name == "*" && repeats(left, right)) return repeated(*this, left, right.as_int());
  if (name == "*" && repeats(right, left)) return repeated(*this, right, left.as_int());
  fail("'" + name + "' can't join values of the types " + type_name(left) + " and " + type_name(right));
}

TestFunction find_test(const std::string& name) {
  static const std::map<std::string, TestFunction> tests = {
      {"defined", is_defined},
      {"undefined", is_kind<Kind::Undefined>},
      {"none", is_kind<Kind::None>},
      {"string", is_kind<Kind::String>},
      {"boolean", is_kind<Kind::Bool>},
      {"integer", is_kind<Kind::Int>},
      {"float", is_kind<Kind::Float>},
      {"number", is_number},
      {"mapping", is_kind<Kind::Dict>},
      {"callable", is_kind<Kind::Function>},
      {"true", is_true},
      {"false", is_false},
      {"sequence", is_sequence},
      {"iterable", is_iterable},
      {"even", is_even},
      {"odd", is_odd},
      {"divisibleby", is_divisible},
      {"eq", is_equal},
      {"equalto", is_equal},
      {"==", is_equal},
      {"ne", is_different},
      {"!=", is_different},
      {"lt", is_below},
      {"lessthan", is_below},
      {"<", is_below},
      {"gt", is_above},
      {"greaterthan", is_above},
      {">", is_above},
      {"le", is_at_most},
      {"<=", is_at_most},
      {"ge", is_at_least},
      {">=", is_at_least},
      {"in", is_in},
      {"sameas", is_same},
      {"lower", is_lower},
      {"upper", is_upper},
      {"filter", is_filter},
      {"test", is_test},
      {"escaped", never},
  };
  const auto found = tests.find(name);
  return found == tests.end() ? nullptr : found->second;
}

void define_globals(Scope& scope) {
  const std::pair<const char*, Value (*)(Interpreter&, Arguments&)> functions[] = {
      {"range", range},
      {"namespace", make_namespace},
      {"dict", make_dict},
      {"raise_exception", raise_exception},
      {"strftime_now", strftime_now},
  };
  for (const auto& [name, function] : functions) scope.set(name, Value::function({name, function}));
}

}  // namespace quern::chat_template
