// Jinja's grammar.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "formats/chat_template/ast.h"
#include "formats/chat_template/lexer.h"

namespace quern::chat_template {

// What both halves of the parser work on.
class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token next() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool skip_name(std::string_view name);
  bool skip_operator(std::string_view name);
  void expect_name(std::string_view name);
  void expect_operator(std::string_view name);
  void expect(Token::Kind kind);
  std::string expect_any_name();

  // Error{InvalidModel} and Error{Unsupported} at the current line.
  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void unsupported(const std::string& what) const;

  // Guards against trees so deep that walking them would overflow the stack.
  class Level {
   public:
    explicit Level(TokenStream& stream);
    ~Level() { --stream_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    TokenStream& stream_;
  };

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& stream) : stream_(stream) {}

  struct TupleOptions {
    bool conditional = true;  // `a if b else c` may stand here without parentheses
    bool in_parentheses = false;
    std::string_view end_name;  // a name that ends it
  };
  NodePtr parse_expression(bool conditional = true);
  // Expressions with commas between them are a tuple; one is itself.
  NodePtr parse_tuple(TupleOptions options);
  // Names, tuples of names and attributes of namespaces, up to `end_name` or what can't be one.
  NodePtr parse_target(std::string_view end_name);
  CallArguments parse_arguments();
  // `|name(...)|...` behind `node`, which may be null.
  NodePtr parse_filters(NodePtr node);
  NodePtr parse_named_filter(NodePtr node);
  NodePtr make(Node::Kind kind, std::string text = {}) const;
  // To be called once a node has its parts: fails where expressions are so deep that walking them would
  // overflow the stack, as long chains of operators are.
  NodePtr sealed(NodePtr node) const;
  NodePtr parse_unary(bool with_filters = true);

 private:
  NodePtr parse_conditional();
  NodePtr parse_or();
  NodePtr parse_and();
  NodePtr parse_not();
  NodePtr parse_compare();
  using Operand = NodePtr (ExpressionParser::*)();
  NodePtr parse_binary(std::initializer_list<std::string_view> operators, Operand operand);
  NodePtr parse_sum() { return parse_binary({"+", "-"}, &ExpressionParser::parse_concatenation); }
  NodePtr parse_concatenation() { return parse_binary({"~"}, &ExpressionParser::parse_product); }
  NodePtr parse_product() { return parse_binary({"*", "/", "//", "%"}, &ExpressionParser::parse_power); }
  NodePtr parse_power() { return parse_binary({"**"}, &ExpressionParser::parse_filtered_unary); }
  NodePtr parse_filtered_unary() { return parse_unary(true); }
  NodePtr parse_primary();
  NodePtr parse_name();
  NodePtr parse_list();
  NodePtr parse_dict();
  NodePtr parse_postfix(NodePtr node);
  NodePtr parse_filters_and_tests(NodePtr node);
  NodePtr parse_subscript(NodePtr node);
  NodePtr parse_subscribed();
  NodePtr parse_slice(NodePtr start);
  NodePtr parse_test(NodePtr node);
  bool at_tuple_end(std::string_view end_name) const;

  TokenStream& stream_;
};

}  // namespace quern::chat_template
