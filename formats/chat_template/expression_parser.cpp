#include "formats/chat_template/parser.h"
#include "ir/error.h"

namespace quern::chat_template {
namespace {

constexpr int kMaxDepth = 200;
constexpr int kMaxHeight = 1000;

}  // namespace

bool TokenStream::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  next();
  return true;
}

bool TokenStream::skip_operator(std::string_view name) {
  if (!current().is_operator(name)) return false;
  next();
  return true;
}

void TokenStream::expect_name(std::string_view name) {
  if (!skip_name(name)) fail(concat("expected '", name, "', found ", describe(current())));
}

void TokenStream::expect_operator(std::string_view name) {
  if (!skip_operator(name)) fail(concat("expected '", name, "', found ", describe(current())));
}

void TokenStream::expect(Token::Kind kind) {
  if (current().kind != kind) {
    Token wanted;
    wanted.kind = kind;
    fail(concat("expected ", describe(wanted), ", found ", describe(current())));
  }
  next();
}

std::string TokenStream::expect_any_name() {
  if (current().kind != Token::Kind::Name) fail("expected a name, found " + describe(current()));
  return next().text;
}

void TokenStream::fail(const std::string& what) const {
  throw_error(ErrorCode::InvalidModel, "chat template, line ", current().line, ": ", what);
}

void TokenStream::unsupported(const std::string& what) const {
  throw_error(ErrorCode::Unsupported, "chat template, line ", current().line, ": ", what,
              " is not supported");
}

TokenStream::Level::Level(TokenStream& stream) : stream_(stream) {
  if (stream_.depth_ >= kMaxDepth) stream_.fail(concat("nested more than ", kMaxDepth, " levels deep"));
  ++stream_.depth_;
}

NodePtr ExpressionParser::make(Node::Kind kind, std::string text) const {
  auto node = std::make_unique<Node>();
  node->kind = kind;
  node->line = stream_.current().line;
  node->text = std::move(text);
  return node;
}

NodePtr ExpressionParser::sealed(NodePtr node) const {
  const auto cover = [&](const NodePtr& part) {
    if (part) node->height = std::max(node->height, part->height + 1);
  };
  for (const NodePtr& part : node->parts) cover(part);
  for (const NodePtr& part : node->arguments.positional) cover(part);
  for (const auto& [name, part] : node->arguments.named) cover(part);
  cover(node->arguments.more_positional);
  cover(node->arguments.more_named);
  if (node->height > kMaxHeight)
    stream_.fail(concat("an expression of more than ", kMaxHeight, " operations in one another"));
  return node;
}

NodePtr ExpressionParser::parse_expression(bool conditional) {
  const TokenStream::Level level(stream_);
  return conditional ? parse_conditional() : parse_or();
}

NodePtr ExpressionParser::parse_conditional() {
  NodePtr value = parse_or();
  while (stream_.current().is_name("if")) {
    NodePtr node = make(Node::Kind::Conditional);
    stream_.next();
    node->parts.push_back(parse_or());
    node->parts.push_back(std::move(value));
    node->parts.push_back(stream_.skip_name("else") ? parse_expression() : nullptr);
    value = sealed(std::move(node));
  }
  return value;
}

NodePtr ExpressionParser::parse_or() {
  NodePtr left = parse_and();
  while (stream_.current().is_name("or")) {
    NodePtr node = make(Node::Kind::Or);
    stream_.next();
    node->parts.push_back(std::move(left));
    node->parts.push_back(parse_and());
    left = sealed(std::move(node));
  }
  return left;
}

NodePtr ExpressionParser::parse_and() {
  NodePtr left = parse_not();
  while (stream_.current().is_name("and")) {
    NodePtr node = make(Node::Kind::And);
    stream_.next();
    node->parts.push_back(std::move(left));
    node->parts.push_back(parse_not());
    left = sealed(std::move(node));
  }
  return left;
}

NodePtr ExpressionParser::parse_not() {
  if (!stream_.current().is_name("not")) return parse_compare();
  const TokenStream::Level level(stream_);
  NodePtr node = make(Node::Kind::Unary, "not");
  stream_.next();
  node->parts.push_back(parse_not());
  return sealed(std::move(node));
}

NodePtr ExpressionParser::parse_compare() {
  NodePtr first = parse_sum();
  NodePtr node = make(Node::Kind::Compare);
  while (true) {
    std::string name;
    for (const std::string_view candidate : {"==", "!=", "<", "<=", ">", ">="}) {
      if (stream_.current().is_operator(candidate)) name = candidate;
    }
    if (stream_.current().is_name("in")) {
      name = "in";
    } else if (stream_.current().is_name("not") && stream_.look().is_name("in")) {
      name = "not in";
      stream_.next();
    }
    if (name.empty()) break;
    stream_.next();
    if (node->parts.empty()) node->parts.push_back(std::move(first));
    node->names.push_back(std::move(name));
    node->parts.push_back(parse_sum());
  }
  return node->parts.empty() ? std::move(first) : sealed(std::move(node));
}

NodePtr ExpressionParser::parse_binary(std::initializer_list<std::string_view> operators, Operand operand) {
  NodePtr left = (this->*operand)();
  while (true) {
    const Token& token = stream_.current();
    bool found = false;
    for (const std::string_view name : operators) found = found || token.is_operator(name);
    if (!found) return left;
    NodePtr node = make(Node::Kind::Binary, token.text);
    stream_.next();
    node->parts.push_back(std::move(left));
    node->parts.push_back((this->*operand)());
    left = sealed(std::move(node));
  }
}

NodePtr ExpressionParser::parse_unary(bool with_filters) {
  const TokenStream::Level level(stream_);
  NodePtr node;
  if (stream_.current().is_operator("-") || stream_.current().is_operator("+")) {
    node = make(Node::Kind::Unary, stream_.current().text);
    stream_.next();
    node->parts.push_back(parse_unary(false));
    node = sealed(std::move(node));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filters ? parse_filters_and_tests(std::move(node)) : std::move(node);
}

NodePtr ExpressionParser::parse_name() {
  NodePtr node = make(Node::Kind::Constant);
  const std::string name = stream_.next().text;
  if (name == "true" || name == "True") {
    node->value = Value::boolean(true);
  } else if (name == "false" || name == "False") {
    node->value = Value::boolean(false);
  } else if (name == "none" || name == "None") {
    node->value = Value::none();
  } else {
    node->kind = Node::Kind::Name;
    node->text = name;
  }
  return node;
}

NodePtr ExpressionParser::parse_primary() {
  const Token& token = stream_.current();
  switch (token.kind) {
    case Token::Kind::Name:
      return parse_name();
    case Token::Kind::String: {
      NodePtr node = make(Node::Kind::Constant);
      std::string text;
      while (stream_.current().kind == Token::Kind::String) text += stream_.next().text;
      node->value = Value::string(std::move(text));
      return node;
    }
    case Token::Kind::Int:
    case Token::Kind::Float: {
      NodePtr node = make(Node::Kind::Constant);
      node->value = token.kind == Token::Kind::Int ? Value::integer(token.integer) : Value::real(token.real);
      stream_.next();
      return node;
    }
    default:
      break;
  }
  if (stream_.skip_operator("(")) {
    NodePtr node = parse_tuple({.in_parentheses = true});
    stream_.expect_operator(")");
    return node;
  }
  if (token.is_operator("[")) return parse_list();
  if (token.is_operator("{")) return parse_dict();
  stream_.fail("unexpected " + describe(token));
}

bool ExpressionParser::at_tuple_end(std::string_view end_name) const {
  const Token& token = stream_.current();
  return token.kind == Token::Kind::VariableEnd || token.kind == Token::Kind::BlockEnd ||
         token.is_operator(")") || (!end_name.empty() && token.is_name(end_name));
}

NodePtr ExpressionParser::parse_tuple(TupleOptions options) {
  NodePtr tuple = make(Node::Kind::TupleLiteral);
  bool is_tuple = false;
  while (true) {
    if (!tuple->parts.empty()) stream_.expect_operator(",");
    if (at_tuple_end(options.end_name)) break;
    tuple->parts.push_back(parse_expression(options.conditional));
    if (!stream_.current().is_operator(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return sealed(std::move(tuple));
  if (!tuple->parts.empty()) return std::move(tuple->parts.front());
  if (!options.in_parentheses) stream_.fail("expected an expression, found " + describe(stream_.current()));
  return tuple;
}

NodePtr ExpressionParser::parse_target(std::string_view end_name) {
  const auto parse_one = [this]() -> NodePtr {
    const TokenStream::Level level(stream_);
    if (stream_.skip_operator("(")) {
      NodePtr inner = parse_target("");
      stream_.expect_operator(")");
      return inner;
    }
    NodePtr node = make(Node::Kind::Name);
    node->text = stream_.expect_any_name();
    for (const char* reserved : {"true", "True", "false", "False", "none", "None"}) {
      if (node->text == reserved) stream_.fail(concat("nothing can be assigned to '", reserved, "'"));
    }
    if (!stream_.skip_operator(".")) return node;
    NodePtr attribute = make(Node::Kind::Attribute, stream_.expect_any_name());
    attribute->parts.push_back(std::move(node));
    return attribute;
  };
  NodePtr tuple = make(Node::Kind::TupleLiteral);
  bool is_tuple = false;
  while (true) {
    if (!tuple->parts.empty()) stream_.expect_operator(",");
    if (!tuple->parts.empty() && (at_tuple_end(end_name) || stream_.current().is_operator("="))) break;
    tuple->parts.push_back(parse_one());
    if (!stream_.current().is_operator(",")) break;
    is_tuple = true;
  }
  return is_tuple ? std::move(tuple) : std::move(tuple->parts.front());
}

NodePtr ExpressionParser::parse_list() {
  NodePtr node = make(Node::Kind::ListLiteral);
  stream_.expect_operator("[");
  while (!stream_.current().is_operator("]")) {
    if (!node->parts.empty()) stream_.expect_operator(",");
    if (stream_.current().is_operator("]")) break;
    node->parts.push_back(parse_expression());
  }
  stream_.expect_operator("]");
  return sealed(std::move(node));
}

NodePtr ExpressionParser::parse_dict() {
  NodePtr node = make(Node::Kind::DictLiteral);
  stream_.expect_operator("{");
  while (!stream_.current().is_operator("}")) {
    if (!node->parts.empty()) stream_.expect_operator(",");
    if (stream_.current().is_operator("}")) break;
    node->parts.push_back(parse_expression());
    stream_.expect_operator(":");
    node->parts.push_back(parse_expression());
  }
  stream_.expect_operator("}");
  return sealed(std::move(node));
}

NodePtr ExpressionParser::parse_postfix(NodePtr node) {
  while (true) {
    if (stream_.current().is_operator(".") || stream_.current().is_operator("[")) {
      node = parse_subscript(std::move(node));
    } else if (stream_.current().is_operator("(")) {
      NodePtr call = make(Node::Kind::Call);
      call->parts.push_back(std::move(node));
      call->arguments = parse_arguments();
      node = sealed(std::move(call));
    } else {
      return node;
    }
  }
}

NodePtr ExpressionParser::parse_filters_and_tests(NodePtr node) {
  while (true) {
    if (stream_.current().is_operator("|")) {
      node = parse_filters(std::move(node));
    } else if (stream_.current().is_name("is")) {
      node = parse_test(std::move(node));
    } else if (stream_.current().is_operator("(")) {
      NodePtr call = make(Node::Kind::Call);
      call->parts.push_back(std::move(node));
      call->arguments = parse_arguments();
      node = sealed(std::move(call));
    } else {
      return node;
    }
  }
}

NodePtr ExpressionParser::parse_subscript(NodePtr node) {
  if (stream_.skip_operator(".")) {
    if (stream_.current().kind == Token::Kind::Int) {
      NodePtr item = make(Node::Kind::Item);
      item->parts.push_back(std::move(node));
      item->parts.push_back(parse_primary());
      return sealed(std::move(item));
    }
    NodePtr attribute = make(Node::Kind::Attribute, stream_.expect_any_name());
    attribute->parts.push_back(std::move(node));
    return sealed(std::move(attribute));
  }
  NodePtr item = make(Node::Kind::Item);
  stream_.expect_operator("[");
  item->parts.push_back(std::move(node));
  item->parts.push_back(parse_subscribed());
  if (stream_.current().is_operator(",")) stream_.unsupported("a subscript of several parts");
  stream_.expect_operator("]");
  return sealed(std::move(item));
}

NodePtr ExpressionParser::parse_subscribed() {
  if (stream_.current().is_operator(":")) return parse_slice(nullptr);
  NodePtr start = parse_expression();
  return stream_.current().is_operator(":") ? parse_slice(std::move(start)) : std::move(start);
}

NodePtr ExpressionParser::parse_slice(NodePtr start) {
  NodePtr slice = make(Node::Kind::Slice);
  slice->parts.push_back(std::move(start));
  for (int part = 0; part < 2; ++part) {
    const bool given = stream_.skip_operator(":");
    const bool empty = !given || stream_.current().is_operator("]") || stream_.current().is_operator(":") ||
                       stream_.current().is_operator(",");
    slice->parts.push_back(empty ? nullptr : parse_expression());
  }
  return sealed(std::move(slice));
}

CallArguments ExpressionParser::parse_arguments() {
  CallArguments arguments;
  stream_.expect_operator("(");
  bool first = true;
  while (!stream_.current().is_operator(")")) {
    if (!first) stream_.expect_operator(",");
    if (!first && stream_.current().is_operator(")")) break;
    first = false;
    if (stream_.skip_operator("*")) {
      if (arguments.more_positional || arguments.more_named)
        stream_.fail("a call has arguments in a wrong order");
      arguments.more_positional = parse_expression();
    } else if (stream_.skip_operator("**")) {
      if (arguments.more_named) stream_.fail("a call has arguments in a wrong order");
      arguments.more_named = parse_expression();
    } else if (stream_.current().kind == Token::Kind::Name && stream_.look().is_operator("=")) {
      if (arguments.more_named) stream_.fail("a call has arguments in a wrong order");
      std::string name = stream_.next().text;
      stream_.next();
      arguments.named.emplace_back(std::move(name), parse_expression());
    } else {
      if (!arguments.named.empty() || arguments.more_positional || arguments.more_named) {
        stream_.fail("a call has arguments in a wrong order");
      }
      arguments.positional.push_back(parse_expression());
    }
  }
  stream_.expect_operator(")");
  return arguments;
}

NodePtr ExpressionParser::parse_named_filter(NodePtr node) {
  NodePtr filter = make(Node::Kind::Filter, stream_.expect_any_name());
  filter->parts.push_back(std::move(node));
  if (stream_.current().is_operator("(")) filter->arguments = parse_arguments();
  return sealed(std::move(filter));
}

NodePtr ExpressionParser::parse_filters(NodePtr node) {
  while (stream_.skip_operator("|")) node = parse_named_filter(std::move(node));
  return node;
}

NodePtr ExpressionParser::parse_test(NodePtr node) {
  stream_.expect_name("is");
  const bool negated = stream_.skip_name("not");
  NodePtr test = make(Node::Kind::Test, stream_.expect_any_name());
  test->parts.push_back(std::move(node));
  const Token& token = stream_.current();
  if (token.is_operator("(")) {
    test->arguments = parse_arguments();
  } else if ((token.kind == Token::Kind::Name && !token.is_name("else") && !token.is_name("or") &&
              !token.is_name("and")) ||
             token.kind == Token::Kind::String || token.kind == Token::Kind::Int ||
             token.kind == Token::Kind::Float || token.is_operator("[") || token.is_operator("{")) {
    if (token.is_name("is")) stream_.fail("tests can't be chained");
    test->arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  test = sealed(std::move(test));
  if (!negated) return test;
  NodePtr negation = make(Node::Kind::Unary, "not");
  negation->parts.push_back(std::move(test));
  return sealed(std::move(negation));
}

}  // namespace quern::chat_template
