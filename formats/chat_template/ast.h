// The syntax tree of a template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/chat_template/value.h"

namespace quern::chat_template {

struct Node;
using NodePtr = std::unique_ptr<Node>;
using Nodes = std::vector<NodePtr>;

struct CallArguments {
  Nodes positional;
  std::vector<std::pair<std::string, NodePtr>> named;
  NodePtr more_positional;  // *args
  NodePtr more_named;       // **kwargs
};

// A node of any kind; which members count is said beside the kinds.
struct Node {
  enum class Kind {
    // Expressions
    Constant,      // value
    Name,          // text
    ListLiteral,   // parts
    TupleLiteral,  // parts
    DictLiteral,   // parts: key, value, key, ...
    Unary,         // text: "not", "-", "+"; parts[0]
    Binary,        // text: an operator; parts[0], parts[1]
    Compare,       // parts[0], then one part per name in `names` (operators)
    And,           // parts[0], parts[1]
    Or,
    Conditional,  // parts: condition, value, other (may be null)
    Attribute,    // parts[0], text
    Item,         // parts[0], parts[1]
    Slice,        // parts: start, stop, step (each may be null)
    Call,         // parts[0], arguments
    Filter,       // parts[0] (null in a filter block), text, arguments
    Test,         // parts[0], text, arguments
    // Statements
    Data,         // text
    Output,       // parts[0]
    If,           // parts[0], body, otherwise
    For,          // targets, parts: iterable, condition (may be null); body, otherwise
    Set,          // targets, parts[0]
    SetBlock,     // targets, parts[0]: a chain of filters or null, body
    Macro,        // text, targets (parameters), parts (their defaults, null for none), body
    CallBlock,    // parts[0]: a Call; targets and defaults[] as Macro; body
    FilterBlock,  // parts[0]: a chain of filters, body
    With,         // targets, parts (their values), body
    Scope,        // body
    Break,
    Continue,
  };
  Kind kind = Kind::Data;
  int line = 0;
  int height = 1;  // of the expression below
  std::string text;
  Value value;
  Nodes parts;
  std::vector<std::string> names;
  CallArguments arguments;
  // Where values go: names, tuples of targets, attributes of namespaces.
  Nodes targets;
  Nodes defaults;
  Nodes body;
  Nodes otherwise;
};

// Throws Error{InvalidModel} for a syntax error, Error{Unsupported} for what chat templates don't need; both
// name the line.
Nodes parse(std::string_view source);

}  // namespace quern::chat_template
