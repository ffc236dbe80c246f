// The values that templates compute with: Python's, as far as Jinja shows them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quern::chat_template {

class Value;
class Interpreter;
struct Arguments;

using List = std::vector<Value>;

// Keeps the order in which keys came. Shared by all copies of a Value; templates can't change one once it is
// made.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);
};

struct Function {
  std::string name;
  std::function<Value(Interpreter&, Arguments&)> call;
};

// What `loop` is within a for block.
struct Loop {
  std::shared_ptr<const List> items;
  size_t index = 0;
};

class Value {
 public:
  enum class Kind { Undefined, None, Bool, Int, Float, String, List, Tuple, Dict, Namespace, Function, Loop };

  Value() = default;                         // undefined
  static Value undefined(std::string hint);  // `hint` says what is missing
  static Value none();
  static Value boolean(bool value);
  static Value integer(int64_t value);
  static Value real(double value);
  static Value string(std::string value);
  // Lists, dicts and functions within one another are so deep at most that walking them can't overflow the
  // stack; deeper ones throw Error{BadData}.
  static Value list(List items);
  static Value tuple(List items);
  static Value dict(std::shared_ptr<const Dict> entries);
  static Value name_space(std::shared_ptr<Dict> entries);
  // `held` is what the function keeps, if anything.
  static Value function(Function function, const Value* held = nullptr);
  // `items` as a list, which is what `loop` loops over.
  static Value loop(std::shared_ptr<Loop> loop, const Value& items);
  static Value from_json(const nlohmann::ordered_json& json);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_number() const { return kind_ == Kind::Bool || kind_ == Kind::Int || kind_ == Kind::Float; }
  bool is_sequence() const { return kind_ == Kind::List || kind_ == Kind::Tuple; }
  bool is_mapping() const { return kind_ == Kind::Dict || kind_ == Kind::Namespace; }

  // Each for the kinds that have it; asking another kind is a bug.
  int64_t as_int() const { return number_; }  // of Bool, too
  double as_real() const { return kind_ == Kind::Float ? real_ : static_cast<double>(number_); }
  const std::string& as_string() const { return *text_; }  // of Undefined: the hint, if text_ is set
  const List& items() const { return *list_; }
  const std::shared_ptr<const List>& shared_items() const { return list_; }
  const Dict& entries() const { return *dict_; }
  Dict& namespace_entries() const { return *namespace_; }
  const Function& as_function() const { return *function_; }
  const Loop& as_loop() const { return *loop_; }
  std::string hint() const { return text_ ? *text_ : "a value"; }

  // Whether it is or holds a namespace: such a value may not go into a namespace, which could then hold
  // itself.
  bool holds_namespace() const { return holds_namespace_; }

  // Whether an `if` takes it.
  bool truth() const;
  // Python's ==.
  friend bool operator==(const Value& a, const Value& b);

 private:
  void hold(const Value& inner);

  Kind kind_ = Kind::Undefined;
  bool holds_namespace_ = false;
  uint32_t depth_ = 0;
  int64_t number_ = 0;
  double real_ = 0.0;
  std::shared_ptr<const std::string> text_;
  std::shared_ptr<const List> list_;
  std::shared_ptr<const Dict> dict_;
  std::shared_ptr<Dict> namespace_;
  std::shared_ptr<const Function> function_;
  std::shared_ptr<Loop> loop_;
};

// The arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // Argument `index`, or the one called `name`; nothing if it is missing.
  std::optional<Value> find(size_t index, std::string_view name) const;
  Value get(size_t index, std::string_view name, Value otherwise) const;
};

// "str", "int", ... as Python names types in messages.
std::string type_name(const Value& value);
// Python's str() and repr().
std::string to_text(const Value& value);
std::string to_repr(const Value& value);

struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<int64_t> indent;
  std::string item_separator;  // empty: as json.dumps chooses
  std::string key_separator;
  bool sort_keys = false;
};
// Python's json.dumps(). Throws Error{BadData} for what has no JSON.
std::string to_json(const Value& value, const JsonStyle& style);
// Python's repr() of a float.
std::string real_to_text(double value);

// Python's <, for what can be ordered; throws Error{BadData} for the rest.
bool less(const Value& a, const Value& b);

}  // namespace quern::chat_template
