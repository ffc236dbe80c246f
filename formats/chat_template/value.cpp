#include "formats/chat_template/value.h"

#include <algorithm>

#include "ir/error.h"

namespace quern::chat_template {
namespace {

constexpr uint32_t kMaxValueDepth = 200;

// Exact also for integers that a double can't tell apart.
bool equal_numbers(const Value& a, const Value& b) {
  if (a.is(Value::Kind::Float) || b.is(Value::Kind::Float)) return a.as_real() == b.as_real();
  return a.as_int() == b.as_int();
}

bool equal_dicts(const Dict& a, const Dict& b) {
  if (a.entries.size() != b.entries.size()) return false;
  return std::all_of(a.entries.begin(), a.entries.end(), [&](const auto& entry) {
    const Value* other = b.find(entry.first);
    return other != nullptr && *other == entry.second;
  });
}

}  // namespace

const Value* Dict::find(const Value& key) const {
  for (const auto& [own, value] : entries) {
    if (own == key) return &value;
  }
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [own, value] : entries) {
    if (own.is(Value::Kind::String) && own.as_string() == key) return &value;
  }
  return nullptr;
}

void Dict::set(Value key, Value value) {
  for (auto& [own, old] : entries) {
    if (own == key) {
      old = std::move(value);
      return;
    }
  }
  entries.emplace_back(std::move(key), std::move(value));
}

Value Value::undefined(std::string hint) {
  Value value;
  value.text_ = std::make_shared<const std::string>(std::move(hint));
  return value;
}

Value Value::none() {
  Value value;
  value.kind_ = Kind::None;
  return value;
}

Value Value::boolean(bool flag) {
  Value value;
  value.kind_ = Kind::Bool;
  value.number_ = flag ? 1 : 0;
  return value;
}

Value Value::integer(int64_t number) {
  Value value;
  value.kind_ = Kind::Int;
  value.number_ = number;
  return value;
}

Value Value::real(double number) {
  Value value;
  value.kind_ = Kind::Float;
  value.real_ = number;
  return value;
}

Value Value::string(std::string text) {
  Value value;
  value.kind_ = Kind::String;
  value.text_ = std::make_shared<const std::string>(std::move(text));
  return value;
}

void Value::hold(const Value& inner) {
  holds_namespace_ = holds_namespace_ || inner.holds_namespace_;
  depth_ = std::max(depth_, inner.depth_ + 1);
  if (depth_ > kMaxValueDepth) {
    throw_error(ErrorCode::BadData, "values are nested more than ", kMaxValueDepth, " levels deep");
  }
}

Value Value::list(List items) {
  Value value;
  value.kind_ = Kind::List;
  for (const Value& item : items) value.hold(item);
  value.list_ = std::make_shared<const List>(std::move(items));
  return value;
}

Value Value::tuple(List items) {
  Value value = list(std::move(items));
  value.kind_ = Kind::Tuple;
  return value;
}

Value Value::dict(std::shared_ptr<const Dict> entries) {
  Value value;
  value.kind_ = Kind::Dict;
  for (const auto& [key, item] : entries->entries) {
    value.hold(key);
    value.hold(item);
  }
  value.dict_ = std::move(entries);
  return value;
}

Value Value::name_space(std::shared_ptr<Dict> entries) {
  Value value;
  value.kind_ = Kind::Namespace;
  value.holds_namespace_ = true;
  value.dict_ = entries;
  value.namespace_ = std::move(entries);
  return value;
}

Value Value::function(Function function, const Value* held) {
  Value value;
  value.kind_ = Kind::Function;
  if (held != nullptr) value.hold(*held);
  value.function_ = std::make_shared<const Function>(std::move(function));
  return value;
}

Value Value::loop(std::shared_ptr<Loop> loop, const Value& items) {
  Value value;
  value.kind_ = Kind::Loop;
  value.hold(items);
  value.loop_ = std::move(loop);
  return value;
}

Value Value::from_json(const nlohmann::ordered_json& json) {
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean:
      return boolean(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer:
      return integer(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return real(json.get<double>());
      return integer(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_float:
      return real(json.get<double>());
    case nlohmann::ordered_json::value_t::string:
      return string(json.get<std::string>());
    case nlohmann::ordered_json::value_t::array: {
      List items;
      for (const auto& item : json) items.push_back(from_json(item));
      return list(std::move(items));
    }
    case nlohmann::ordered_json::value_t::object: {
      auto entries = std::make_shared<Dict>();
      for (const auto& [key, item] : json.items())
        entries->entries.emplace_back(string(key), from_json(item));
      return dict(std::move(entries));
    }
    default:
      return none();
  }
}

bool Value::truth() const {
  switch (kind_) {
    case Kind::Undefined:
    case Kind::None:
      return false;
    case Kind::Bool:
    case Kind::Int:
      return number_ != 0;
    case Kind::Float:
      return real_ != 0.0;
    case Kind::String:
      return !text_->empty();
    case Kind::List:
    case Kind::Tuple:
      return !list_->empty();
    case Kind::Dict:
      return !dict_->entries.empty();
    case Kind::Namespace:
    case Kind::Function:
    case Kind::Loop:
      return true;
  }
  return false;
}

bool operator==(const Value& a, const Value& b) {
  using Kind = Value::Kind;
  if (a.is_number() && b.is_number()) return equal_numbers(a, b);
  if (a.kind_ != b.kind_) return false;
  switch (a.kind_) {
    case Kind::String:
      return *a.text_ == *b.text_;
    case Kind::List:
    case Kind::Tuple:
      return *a.list_ == *b.list_;
    case Kind::Dict:
      return equal_dicts(*a.dict_, *b.dict_);
    case Kind::Namespace:
      return a.namespace_ == b.namespace_;
    case Kind::Function:
      return a.function_ == b.function_;
    case Kind::Loop:
      return a.loop_ == b.loop_;
    default:
      return true;
  }
}

bool less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is(Value::Kind::Float) || b.is(Value::Kind::Float)) return a.as_real() < b.as_real();
    return a.as_int() < b.as_int();
  }
  if (a.is(Value::Kind::String) && b.is(Value::Kind::String)) return a.as_string() < b.as_string();
  if (a.is_sequence() && a.kind() == b.kind()) {
    for (size_t i = 0; i < std::min(a.items().size(), b.items().size()); ++i) {
      if (!(a.items()[i] == b.items()[i])) return less(a.items()[i], b.items()[i]);
    }
    return a.items().size() < b.items().size();
  }
  throw_error(ErrorCode::BadData, "values of the types ", type_name(a), " and ", type_name(b),
              " have no order");
}

std::optional<Value> Arguments::find(size_t index, std::string_view name) const {
  if (index < positional.size()) return positional[index];
  for (const auto& [own, value] : named) {
    if (own == name) return value;
  }
  return std::nullopt;
}

Value Arguments::get(size_t index, std::string_view name, Value otherwise) const {
  return find(index, name).value_or(std::move(otherwise));
}

std::string type_name(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::Undefined:
      return "undefined";
    case Value::Kind::None:
      return "NoneType";
    case Value::Kind::Bool:
      return "bool";
    case Value::Kind::Int:
      return "int";
    case Value::Kind::Float:
      return "float";
    case Value::Kind::String:
      return "str";
    case Value::Kind::List:
      return "list";
    case Value::Kind::Tuple:
      return "tuple";
    case Value::Kind::Dict:
      return "dict";
    case Value::Kind::Namespace:
      return "namespace";
    case Value::Kind::Function:
      return "function";
    case Value::Kind::Loop:
      return "loop";
  }
  return "";
}

}  // namespace quern::chat_template
