// The interpreter's expressions.
#include <algorithm>
#include <cmath>

#include "formats/chat_template/interpreter.h"
#include "formats/chat_template/strings.h"
#include "formats/tokenizer/utf8.h"
#include "ir/error.h"

namespace quern::chat_template {

Value Interpreter::evaluate(const Node& node, const ScopePtr& scope) {
  charge(1);
  switch (node.kind) {
    case Node::Kind::Constant:
      return node.value;
    case Node::Kind::Name: {
      const Value* found = scope->find(node.text);
      return found != nullptr ? *found : Value::undefined("'" + node.text + "'");
    }
    case Node::Kind::ListLiteral:
    case Node::Kind::TupleLiteral: {
      List items;
      for (const NodePtr& part : node.parts) items.push_back(evaluate(*part, scope));
      return node.kind == Node::Kind::ListLiteral ? Value::list(std::move(items))
                                                  : Value::tuple(std::move(items));
    }
    case Node::Kind::DictLiteral: {
      auto dict = std::make_shared<Dict>();
      for (size_t i = 0; i + 1 < node.parts.size(); i += 2) {
        charge(dict->entries.size() / 8);
        dict->set(evaluate(*node.parts[i], scope), evaluate(*node.parts[i + 1], scope));
      }
      return Value::dict(std::move(dict));
    }
    case Node::Kind::Unary:
      return evaluate_unary(node, scope);
    case Node::Kind::Binary: {
      const Value left = evaluate(*node.parts[0], scope);
      return binary(node.text, left, evaluate(*node.parts[1], scope));
    }
    case Node::Kind::Compare:
      return evaluate_compare(node, scope);
    case Node::Kind::And: {
      Value left = evaluate(*node.parts[0], scope);
      return left.truth() ? evaluate(*node.parts[1], scope) : left;
    }
    case Node::Kind::Or: {
      Value left = evaluate(*node.parts[0], scope);
      return left.truth() ? left : evaluate(*node.parts[1], scope);
    }
    case Node::Kind::Conditional:
      if (evaluate(*node.parts[0], scope).truth()) return evaluate(*node.parts[1], scope);
      return node.parts[2] ? evaluate(*node.parts[2], scope) : Value::undefined("a value without an else");
    case Node::Kind::Attribute:
      return attribute(evaluate(*node.parts[0], scope), node.text);
    case Node::Kind::Item:
      return evaluate_item(node, scope);
    case Node::Kind::Call:
      return evaluate_call(node, scope);
    case Node::Kind::Filter:
      return evaluate_filters(node, scope, nullptr);
    case Node::Kind::Test: {
      const Value input = evaluate(*node.parts[0], scope);
      Arguments arguments = evaluate_arguments(node.arguments, scope);
      return Value::boolean(call_test(node.text, input, arguments));
    }
    default:
      throw_error(ErrorCode::Internal, "chat template: a statement where an expression belongs");
  }
}

Value Interpreter::evaluate_unary(const Node& node, const ScopePtr& scope) {
  const Value value = evaluate(*node.parts[0], scope);
  if (node.text == "not") return Value::boolean(!value.truth());
  if (!value.is_number()) fail("'" + node.text + "' needs a number, not a value of type " + type_name(value));
  if (value.is(Value::Kind::Float)) return Value::real(node.text == "-" ? -value.as_real() : value.as_real());
  if (node.text == "-" && value.as_int() == INT64_MIN) fail("a number is too large");
  return Value::integer(node.text == "-" ? -value.as_int() : value.as_int());
}

Value Interpreter::evaluate_compare(const Node& node, const ScopePtr& scope) {
  Value left = evaluate(*node.parts[0], scope);
  for (size_t i = 0; i < node.names.size(); ++i) {
    Value right = evaluate(*node.parts[i + 1], scope);
    if (!compare(node.names[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

bool Interpreter::compare(const std::string& name, const Value& left, const Value& right) {
  if (name == "==") return left == right;
  if (name == "!=") return !(left == right);
  if (name == "in") return contains(right, left);
  if (name == "not in") return !contains(right, left);
  if (left.is(Value::Kind::Undefined) || right.is(Value::Kind::Undefined)) {
    fail((left.is(Value::Kind::Undefined) ? left : right).hint() + " is undefined");
  }
  try {
    if (name == "<") return less(left, right);
    if (name == ">") return less(right, left);
    if (name == "<=") return less(left, right) || left == right;
    return less(right, left) || left == right;
  } catch (const Error& error) {
    fail(error.message());
  }
}

namespace {

bool is_hashable(const Value& value) {
  if (value.is(Value::Kind::Tuple))
    return std::all_of(value.items().begin(), value.items().end(), is_hashable);
  return !value.is(Value::Kind::List) && !value.is(Value::Kind::Dict);
}

}  // namespace

bool Interpreter::contains(const Value& container, const Value& wanted) {
  switch (container.kind()) {
    case Value::Kind::String:
      if (!wanted.is(Value::Kind::String))
        fail("'in' of a text needs a text, not a value of type " + type_name(wanted));
      charge(container.as_string().size() / 16);
      return container.as_string().find(wanted.as_string()) != std::string::npos;
    case Value::Kind::List:
    case Value::Kind::Tuple:
      charge(container.items().size());
      return std::find(container.items().begin(), container.items().end(), wanted) != container.items().end();
    case Value::Kind::Dict:
      charge(container.entries().entries.size());
      if (!is_hashable(wanted)) fail("a value of type " + type_name(wanted) + " can't be a key");
      return container.entries().find(wanted) != nullptr;
    case Value::Kind::Undefined:
      return false;
    default:
      fail("'in' can't search a value of type " + type_name(container));
  }
}

Value Interpreter::evaluate_item(const Node& node, const ScopePtr& scope) {
  const Value object = evaluate(*node.parts[0], scope);
  if (node.parts[1]->kind == Node::Kind::Slice) return slice(object, *node.parts[1], scope);
  return item(object, evaluate(*node.parts[1], scope));
}

Value Interpreter::evaluate_call(const Node& node, const ScopePtr& scope) {
  const Node& callee = *node.parts[0];
  if (callee.kind == Node::Kind::Attribute) {
    const Value self = evaluate(*callee.parts[0], scope);
    if (const MethodFunction method = find_method(self, callee.text)) {
      Arguments arguments = evaluate_arguments(node.arguments, scope);
      return method(*this, self, arguments);
    }
    const Value function = attribute(self, callee.text);
    if (!function.is(Value::Kind::Function)) {
      fail("a value of type " + type_name(self) + " has no method '" + callee.text + "'");
    }
    Arguments arguments = evaluate_arguments(node.arguments, scope);
    return call(function, arguments);
  }
  const Value function = evaluate(callee, scope);
  Arguments arguments = evaluate_arguments(node.arguments, scope);
  return call(function, arguments);
}

Value Interpreter::call(const Value& function, Arguments& arguments) {
  if (function.is(Value::Kind::Undefined)) fail(function.hint() + " is undefined");
  if (!function.is(Value::Kind::Function))
    fail("a value of type " + type_name(function) + " can't be called");
  return function.as_function().call(*this, arguments);
}

Arguments Interpreter::evaluate_arguments(const CallArguments& arguments, const ScopePtr& scope) {
  Arguments values;
  for (const NodePtr& node : arguments.positional) values.positional.push_back(evaluate(*node, scope));
  if (arguments.more_positional) {
    for (Value& value : items_of(evaluate(*arguments.more_positional, scope)))
      values.positional.push_back(std::move(value));
  }
  for (const auto& [name, node] : arguments.named) values.named.emplace_back(name, evaluate(*node, scope));
  if (arguments.more_named) {
    const Value more = evaluate(*arguments.more_named, scope);
    if (!more.is(Value::Kind::Dict)) fail("** needs a dict, not a value of type " + type_name(more));
    for (const auto& [key, value] : more.entries().entries) values.named.emplace_back(to_text(key), value);
  }
  return values;
}

// `input` is what a filter block captured, for the innermost filter of the chain.
Value Interpreter::evaluate_filters(const Node& node, const ScopePtr& scope, const Value* input) {
  const Node* inner = node.parts[0].get();
  const Value value = inner == nullptr ? *input
                      : input != nullptr && inner->kind == Node::Kind::Filter
                          ? evaluate_filters(*inner, scope, input)
                          : evaluate(*inner, scope);
  Arguments arguments = evaluate_arguments(node.arguments, scope);
  return call_filter(node.text, value, arguments);
}

Value Interpreter::call_filter(const std::string& name, const Value& input, Arguments& arguments) {
  const FilterFunction filter = find_filter(name);
  if (filter == nullptr)
    throw_error(ErrorCode::Unsupported, "chat template, line ", line_, ": there is no filter '", name, "'");
  return filter(*this, input, arguments);
}

bool Interpreter::call_test(const std::string& name, const Value& input, Arguments& arguments) {
  const TestFunction test = find_test(name);
  if (test == nullptr)
    throw_error(ErrorCode::Unsupported, "chat template, line ", line_, ": there is no test '", name, "'");
  return test(*this, input, arguments);
}

Value Interpreter::attribute(const Value& object, const std::string& name) {
  if (object.is(Value::Kind::Undefined)) fail(object.hint() + " is undefined");
  if (name.starts_with("_")) fail("the attribute '" + name + "' is not for templates");
  if (object.is(Value::Kind::Loop)) return loop_attribute(*this, object.as_loop(), name);
  if (object.is(Value::Kind::Namespace)) {
    const Value* found = object.entries().find(std::string_view(name));
    return found != nullptr ? *found : Value::undefined("'" + name + "' of the namespace");
  }
  if (const MethodFunction method = find_method(object, name)) {
    return Value::function(
        {name, [object, method](Interpreter& interpreter,
                                Arguments& arguments) { return method(interpreter, object, arguments); }},
        &object);
  }
  if (object.is(Value::Kind::Dict)) {
    charge(object.entries().entries.size() / 8);
    if (const Value* found = object.entries().find(std::string_view(name))) return *found;
  }
  if (object.is(Value::Kind::Function) && name == "name") return Value::string(object.as_function().name);
  return Value::undefined("'" + name + "' of a value of type " + type_name(object));
}

Value Interpreter::item(const Value& object, const Value& key) {
  const Value missing = Value::undefined(to_repr(key) + " of a value of type " + type_name(object));
  switch (object.kind()) {
    case Value::Kind::Undefined:
      fail(object.hint() + " is undefined");
    case Value::Kind::Dict:
      charge(object.entries().entries.size() / 8);
      if (const Value* found = object.entries().find(key)) return *found;
      break;
    case Value::Kind::List:
    case Value::Kind::Tuple:
      if (key.is(Value::Kind::Int) || key.is(Value::Kind::Bool)) {
        const auto size = static_cast<int64_t>(object.items().size());
        const int64_t index = key.as_int() < 0 ? key.as_int() + size : key.as_int();
        return index >= 0 && index < size ? object.items()[static_cast<size_t>(index)] : missing;
      }
      break;
    case Value::Kind::String:
      if (key.is(Value::Kind::Int)) {
        charge(object.as_string().size() / 16);
        const CodePoints characters(object.as_string());
        const auto size = static_cast<int64_t>(characters.size());
        const int64_t index = key.as_int() < 0 ? key.as_int() + size : key.as_int();
        return index >= 0 && index < size ? Value::string(characters.slice(static_cast<size_t>(index), 1))
                                          : missing;
      }
      break;
    default:
      break;
  }
  return key.is(Value::Kind::String) ? attribute(object, key.as_string()) : missing;
}

Value Interpreter::slice(const Value& object, const Node& node, const ScopePtr& scope) {
  if (object.is(Value::Kind::Undefined)) fail(object.hint() + " is undefined");
  std::optional<int64_t> bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (!node.parts[i]) continue;
    const Value value = evaluate(*node.parts[i], scope);
    if (value.is(Value::Kind::None)) continue;
    if (!value.is(Value::Kind::Int))
      fail("a slice needs whole numbers, not a value of type " + type_name(value));
    bounds[i] = value.as_int();
  }
  if (bounds[2] == 0) fail("a slice has the step 0");
  if (object.is(Value::Kind::String)) {
    charge(object.as_string().size() / 16);
    const CodePoints characters(object.as_string());
    std::string out;
    for (const size_t i : slice_indices(characters.size(), bounds)) out += characters.slice(i, 1);
    return text(std::move(out));
  }
  if (!object.is_sequence()) fail("a value of type " + type_name(object) + " has no slices");
  List items;
  for (const size_t i : slice_indices(object.items().size(), bounds)) items.push_back(object.items()[i]);
  charge(items.size());
  return object.is(Value::Kind::List) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

}  // namespace quern::chat_template
