#include "formats/chat_template/interpreter.h"

#include <algorithm>

#include "formats/tokenizer/utf8.h"
#include "ir/error.h"

namespace quern::chat_template {
namespace {

// Work for so many bytes counts as one step.
constexpr size_t kBytesPerStep = 16;

}  // namespace

const Value* Scope::find(const std::string& name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->outer_.get()) {
    const auto found = scope->variables_.find(name);
    if (found != scope->variables_.end()) return &found->second;
  }
  return nullptr;
}

void Interpreter::fail(const std::string& what) const {
  throw_error(ErrorCode::BadData, "chat template, line ", line_, ": ", what);
}

void Interpreter::charge(size_t items) {
  steps_ += static_cast<int64_t>(std::min<size_t>(items, size_t{1} << 40));
  if (steps_ > limits_.max_steps) fail(concat("takes more than ", limits_.max_steps, " steps"));
}

Value Interpreter::text(std::string text) {
  if (text.size() > limits_.max_output)
    fail(concat("makes a text of more than ", limits_.max_output, " bytes"));
  charge(text.size() / kBytesPerStep);
  return Value::string(std::move(text));
}

Value Interpreter::list(List items) {
  charge(items.size());
  return Value::list(std::move(items));
}

void Interpreter::append(std::string& out, const std::string& text) {
  if (out.size() + text.size() > limits_.max_output)
    fail(concat("writes more than ", limits_.max_output, " bytes"));
  charge(text.size() / kBytesPerStep);
  out += text;
}

std::string Interpreter::run(const Nodes& nodes, const Dict& variables) {
  const auto globals = std::make_shared<Scope>(nullptr);
  define_globals(*globals);
  const auto scope = std::make_shared<Scope>(globals);
  for (const auto& [name, value] : variables.entries) scope->set(name.as_string(), value);
  std::string out;
  execute(nodes, scope, out);
  return out;
}

List Interpreter::items_of(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::Undefined:
      return {};
    case Value::Kind::List:
    case Value::Kind::Tuple:
      charge(value.items().size());
      return value.items();
    case Value::Kind::Dict: {
      List keys;
      for (const auto& [key, item] : value.entries().entries) keys.push_back(key);
      charge(keys.size());
      return keys;
    }
    case Value::Kind::String: {
      List characters;
      const std::string& text = value.as_string();
      charge(text.size());
      for (size_t at = 0; at < text.size();) {
        const size_t length = tokenizer::utf8_length(text[at]);
        characters.push_back(Value::string(text.substr(at, length)));
        at += length;
      }
      return characters;
    }
    default:
      fail("a value of type " + type_name(value) + " can't be iterated over");
  }
}

Interpreter::Flow Interpreter::execute(const Nodes& nodes, const ScopePtr& scope, std::string& out) {
  for (const NodePtr& node : nodes) {
    const Flow flow = execute(*node, scope, out);
    if (flow != Flow::Normal) return flow;
  }
  return Flow::Normal;
}

Interpreter::Flow Interpreter::execute(const Node& node, const ScopePtr& scope, std::string& out) {
  line_ = node.line;
  charge(1);
  switch (node.kind) {
    case Node::Kind::Data:
      append(out, node.text);
      break;
    case Node::Kind::Output:
      append(out, to_text(evaluate(*node.parts[0], scope)));
      break;
    case Node::Kind::If:
      return execute(evaluate(*node.parts[0], scope).truth() ? node.body : node.otherwise, scope, out);
    case Node::Kind::For:
      return run_for(node, scope, out);
    case Node::Kind::Set:
      assign(*node.targets[0], evaluate(*node.parts[0], scope), scope);
      break;
    case Node::Kind::SetBlock: {
      Value value = capture(node.body, scope);
      if (node.parts[0]) value = evaluate_filters(*node.parts[0], scope, &value);
      assign(*node.targets[0], std::move(value), scope);
      break;
    }
    case Node::Kind::Macro:
      scope->set(node.text, make_macro(node, scope));
      break;
    case Node::Kind::CallBlock:
      append(out, to_text(call_with_block(node, scope)));
      break;
    case Node::Kind::FilterBlock: {
      const Value value = capture(node.body, scope);
      append(out, to_text(evaluate_filters(*node.parts[0], scope, &value)));
      break;
    }
    case Node::Kind::With:
      run_with(node, scope, out);
      break;
    case Node::Kind::Scope:
      return execute(node.body, std::make_shared<Scope>(scope), out);
    case Node::Kind::Break:
      return Flow::Break;
    case Node::Kind::Continue:
      return Flow::Continue;
    default:
      throw_error(ErrorCode::Internal, "chat template: an expression where a statement belongs");
  }
  return Flow::Normal;
}

Interpreter::Flow Interpreter::run_for(const Node& node, const ScopePtr& scope, std::string& out) {
  List items = items_of(evaluate(*node.parts[0], scope));
  if (node.parts[1]) {
    List kept;
    for (const Value& item : items) {
      const auto inner = std::make_shared<Scope>(scope);
      assign(*node.targets[0], item, inner);
      if (evaluate(*node.parts[1], inner).truth()) kept.push_back(item);
    }
    items = std::move(kept);
  }
  if (items.empty()) return execute(node.otherwise, scope, out);
  const Value sequence = Value::list(std::move(items));
  const std::shared_ptr<const List>& shared = sequence.shared_items();
  for (size_t i = 0; i < shared->size(); ++i) {
    const auto inner = std::make_shared<Scope>(scope);
    auto loop = std::make_shared<Loop>();
    loop->items = shared;
    loop->index = i;
    inner->set("loop", Value::loop(std::move(loop), sequence));
    line_ = node.line;
    assign(*node.targets[0], (*shared)[i], inner);
    if (execute(node.body, inner, out) == Flow::Break) break;
  }
  return Flow::Normal;
}

void Interpreter::run_with(const Node& node, const ScopePtr& scope, std::string& out) {
  const auto inner = std::make_shared<Scope>(scope);
  for (size_t i = 0; i < node.targets.size(); ++i)
    assign(*node.targets[i], evaluate(*node.parts[i], scope), inner);
  execute(node.body, inner, out);
}

Value Interpreter::capture(const Nodes& nodes, const ScopePtr& scope) {
  std::string out;
  execute(nodes, std::make_shared<Scope>(scope), out);
  return text(std::move(out));
}

void Interpreter::assign(const Node& target, Value value, const ScopePtr& scope) {
  if (target.kind == Node::Kind::Name) {
    scope->set(target.text, std::move(value));
  } else if (target.kind == Node::Kind::Attribute) {
    const Value* object = scope->find(target.parts[0]->text);
    if (object == nullptr || !object->is(Value::Kind::Namespace)) {
      fail("'" + target.parts[0]->text + "' is no namespace, so that '" + target.text +
           "' of it can't be set");
    }
    if (value.holds_namespace()) fail("a namespace can't hold a namespace");
    charge(object->entries().entries.size() / 8);
    object->namespace_entries().set(Value::string(target.text), std::move(value));
  } else {
    const List items = items_of(value);
    if (items.size() != target.parts.size()) {
      fail(concat("can't unpack ", items.size(), " values into ", target.parts.size(), " names"));
    }
    for (size_t i = 0; i < items.size(); ++i) assign(*target.parts[i], items[i], scope);
  }
}

Value Interpreter::make_macro(const Node& node, const ScopePtr& scope) {
  // The tree outlives the run. A scope that held its own macro strongly would never go.
  const std::weak_ptr<Scope> weak = scope;
  return Value::function({node.text, [&node, weak](Interpreter& interpreter, Arguments& arguments) {
                            const ScopePtr outer = weak.lock();
                            if (!outer)
                              interpreter.fail("the macro '" + node.text +
                                               "' is called outside of its block");
                            return interpreter.call_macro(node, outer, arguments);
                          }});
}

Value Interpreter::call_macro(const Node& node, const ScopePtr& scope, Arguments& arguments) {
  if (depth_ >= limits_.max_depth)
    fail(concat("macros call one another more than ", limits_.max_depth, " levels deep"));
  ++depth_;
  const int line = line_;
  const auto inner = std::make_shared<Scope>(scope);
  bind_parameters(node, inner, arguments);
  std::string out;
  execute(node.body, inner, out);
  --depth_;
  line_ = line;
  return text(std::move(out));
}

void Interpreter::bind_parameters(const Node& node, const ScopePtr& scope, Arguments& arguments) {
  auto more_named = std::make_shared<Dict>();
  for (auto& argument : arguments.named) {
    const std::string& name = argument.first;
    auto& value = argument.second;
    const bool known = std::any_of(node.targets.begin(), node.targets.end(),
                                   [&](const NodePtr& t) { return t->text == name; });
    if (name == "caller" && !known) {
      scope->set(name, value);
    } else if (!known) {
      more_named->set(Value::string(name), value);
    }
  }
  for (size_t i = 0; i < node.targets.size(); ++i) {
    const std::string& name = node.targets[i]->text;
    std::optional<Value> value = arguments.find(i, name);
    if (!value && node.defaults[i]) value = evaluate(*node.defaults[i], scope);
    scope->set(name, value ? *value : Value::undefined("parameter '" + name + "'"));
  }
  const size_t taken = std::min(arguments.positional.size(), node.targets.size());
  scope->set("varargs", Value::tuple(List(arguments.positional.begin() + static_cast<std::ptrdiff_t>(taken),
                                          arguments.positional.end())));
  scope->set("kwargs", Value::dict(std::move(more_named)));
}

Value Interpreter::call_with_block(const Node& node, const ScopePtr& scope) {
  const Node& call_node = *node.parts[0];
  const Value callee = evaluate(*call_node.parts[0], scope);
  Arguments arguments = evaluate_arguments(call_node.arguments, scope);
  arguments.named.emplace_back("caller", make_macro(node, scope));
  return call(callee, arguments);
}

}  // namespace quern::chat_template
