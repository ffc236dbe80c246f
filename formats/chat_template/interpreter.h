// Runs a template's syntax tree.
#pragma once

#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "formats/chat_template/ast.h"

namespace quern::chat_template {

// Variables of a block, and of those around it.
class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> outer) : outer_(std::move(outer)) {}
  const Value* find(const std::string& name) const;
  void set(const std::string& name, Value value) { variables_[name] = std::move(value); }

 private:
  std::unordered_map<std::string, Value> variables_;
  std::shared_ptr<Scope> outer_;
};
using ScopePtr = std::shared_ptr<Scope>;

// What a template may cost.
struct Limits {
  int64_t max_steps =
      20'000'000;  // nodes evaluated, items and bytes handled (a byte is a sixteenth of a step)
  size_t max_output = size_t{1} << 26;  // bytes, of the text and of any value on the way
  int max_depth = 100;                  // macros called within one another
};

class Interpreter {
 public:
  Interpreter(Limits limits, std::optional<std::time_t> now) : limits_(limits), now_(now) {}

  std::string run(const Nodes& nodes, const Dict& variables);

  // For filters, tests, methods and functions:
  [[noreturn]] void fail(const std::string& what) const;
  // Counts work; fails where it is too much.
  void charge(size_t items);
  // A string value; fails where it is too long.
  Value text(std::string text);
  Value list(List items);
  // The items that a for block would see.
  List items_of(const Value& value);
  Value attribute(const Value& object, const std::string& name);
  Value item(const Value& object, const Value& key);
  Value call(const Value& function, Arguments& arguments);
  Value call_filter(const std::string& name, const Value& input, Arguments& arguments);
  bool call_test(const std::string& name, const Value& input, Arguments& arguments);
  bool contains(const Value& container, const Value& wanted);
  Value binary(const std::string& name, const Value& left, const Value& right);
  std::time_t now() const { return now_ ? *now_ : std::time(nullptr); }

 private:
  enum class Flow { Normal, Break, Continue };

  Flow execute(const Nodes& nodes, const ScopePtr& scope, std::string& out);
  Flow execute(const Node& node, const ScopePtr& scope, std::string& out);
  Flow run_for(const Node& node, const ScopePtr& scope, std::string& out);
  void run_with(const Node& node, const ScopePtr& scope, std::string& out);
  Value capture(const Nodes& nodes, const ScopePtr& scope);
  void assign(const Node& target, Value value, const ScopePtr& scope);
  Value make_macro(const Node& node, const ScopePtr& scope);
  Value call_macro(const Node& node, const ScopePtr& scope, Arguments& arguments);
  void bind_parameters(const Node& node, const ScopePtr& scope, Arguments& arguments);
  Value call_with_block(const Node& node, const ScopePtr& scope);
  void append(std::string& out, const std::string& text);

  Value evaluate(const Node& node, const ScopePtr& scope);
  Value evaluate_call(const Node& node, const ScopePtr& scope);
  Value evaluate_compare(const Node& node, const ScopePtr& scope);
  Value evaluate_unary(const Node& node, const ScopePtr& scope);
  Value evaluate_item(const Node& node, const ScopePtr& scope);
  Value evaluate_filters(const Node& node, const ScopePtr& scope, const Value* input);
  Value slice(const Value& object, const Node& node, const ScopePtr& scope);
  Arguments evaluate_arguments(const CallArguments& arguments, const ScopePtr& scope);
  bool compare(const std::string& name, const Value& left, const Value& right);

  Limits limits_;
  std::optional<std::time_t> now_;
  int64_t steps_ = 0;
  int depth_ = 0;
  int line_ = 0;
};

using FilterFunction = Value (*)(Interpreter& interpreter, const Value& input, Arguments& arguments);
using TestFunction = bool (*)(Interpreter& interpreter, const Value& input, Arguments& arguments);
using MethodFunction = Value (*)(Interpreter& interpreter, const Value& self, Arguments& arguments);

// Null for a name that isn't known.
FilterFunction find_filter(const std::string& name);
TestFunction find_test(const std::string& name);
MethodFunction find_method(const Value& self, const std::string& name);
// The functions that every template has: range, namespace, ...
void define_globals(Scope& scope);

}  // namespace quern::chat_template
