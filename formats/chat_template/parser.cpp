#include "formats/chat_template/parser.h"

#include <algorithm>

#include "ir/error.h"

namespace quern::chat_template {
namespace {

class StatementParser {
 public:
  explicit StatementParser(std::string_view source) : stream_(tokenize(source)), expressions_(stream_) {}

  Nodes run() {
    Nodes nodes = parse_until({});
    if (stream_.current().kind != Token::Kind::End) stream_.fail("unexpected " + describe(stream_.current()));
    return nodes;
  }

 private:
  using EndNames = std::initializer_list<std::string_view>;

  // Statements up to a block that begins with one of the names (the stream then stands at it), or to the end.
  Nodes parse_until(EndNames ends) {
    const TokenStream::Level level(stream_);
    Nodes nodes;
    while (true) {
      const Token& token = stream_.current();
      if (token.kind == Token::Kind::Data) {
        nodes.push_back(expressions_.make(Node::Kind::Data, token.text));
        stream_.next();
      } else if (token.kind == Token::Kind::VariableBegin) {
        nodes.push_back(expressions_.make(Node::Kind::Output));
        stream_.next();
        nodes.back()->parts.push_back(expressions_.parse_tuple({}));
        stream_.expect(Token::Kind::VariableEnd);
      } else if (token.kind == Token::Kind::BlockBegin) {
        stream_.next();
        const std::string& name = stream_.current().text;
        if (stream_.current().kind == Token::Kind::Name &&
            std::find(ends.begin(), ends.end(), name) != ends.end()) {
          return nodes;
        }
        nodes.push_back(parse_statement());
      } else {
        if (ends.size() > 0)
          stream_.fail(concat("expected '{% ", *(ends.end() - 1), " %}', found ", describe(token)));
        return nodes;
      }
    }
  }

  // A body and its closing block.
  Nodes parse_body(std::string_view end) {
    stream_.expect(Token::Kind::BlockEnd);
    Nodes nodes = parse_until({end});
    stream_.expect_name(end);
    stream_.expect(Token::Kind::BlockEnd);
    return nodes;
  }

  NodePtr parse_statement() {
    const std::string name = stream_.expect_any_name();
    if (name == "if") return parse_if();
    if (name == "for") return parse_for();
    if (name == "set") return parse_set();
    if (name == "macro") return parse_macro();
    if (name == "call") return parse_call();
    if (name == "filter") return parse_filter();
    if (name == "with") return parse_with();
    if (name == "generation") return parse_generation();
    if (name == "break" || name == "continue") return parse_jump(name);
    for (const char* known :
         {"block", "extends", "include", "import", "from", "autoescape", "do", "trans", "debug"}) {
      if (name == known) stream_.unsupported("the block '" + name + "'");
    }
    stream_.fail("unknown block '" + name + "'");
  }

  NodePtr parse_if() {
    NodePtr node = expressions_.make(Node::Kind::If);
    node->parts.push_back(expressions_.parse_tuple({.conditional = false}));
    stream_.expect(Token::Kind::BlockEnd);
    node->body = parse_until({"elif", "else", "endif"});
    if (stream_.skip_name("elif")) {
      const TokenStream::Level level(stream_);
      node->otherwise.push_back(parse_if());
      return node;
    }
    if (stream_.skip_name("else")) {
      node->otherwise = parse_body("endif");
    } else {
      stream_.expect_name("endif");
      stream_.expect(Token::Kind::BlockEnd);
    }
    return node;
  }

  NodePtr parse_for() {
    NodePtr node = expressions_.make(Node::Kind::For);
    node->targets.push_back(expressions_.parse_target("in"));
    stream_.expect_name("in");
    node->parts.push_back(expressions_.parse_tuple({.conditional = false, .end_name = "recursive"}));
    node->parts.push_back(stream_.skip_name("if") ? expressions_.parse_expression() : nullptr);
    if (stream_.current().is_name("recursive")) stream_.unsupported("a recursive loop");
    stream_.expect(Token::Kind::BlockEnd);
    ++loops_;
    node->body = parse_until({"else", "endfor"});
    --loops_;
    if (stream_.skip_name("else")) {
      node->otherwise = parse_body("endfor");
    } else {
      stream_.expect_name("endfor");
      stream_.expect(Token::Kind::BlockEnd);
    }
    return node;
  }

  NodePtr parse_set() {
    NodePtr node = expressions_.make(Node::Kind::Set);
    node->targets.push_back(expressions_.parse_target(""));
    if (stream_.skip_operator("=")) {
      node->parts.push_back(expressions_.parse_tuple({}));
      stream_.expect(Token::Kind::BlockEnd);
      return node;
    }
    node->kind = Node::Kind::SetBlock;
    node->parts.push_back(expressions_.parse_filters(nullptr));
    node->body = parse_body("endset");
    return node;
  }

  // (a, b=1): names into targets, values into defaults (null for none).
  void parse_signature(Node& node) {
    stream_.expect_operator("(");
    while (!stream_.current().is_operator(")")) {
      if (!node.targets.empty()) stream_.expect_operator(",");
      node.targets.push_back(expressions_.make(Node::Kind::Name));
      node.targets.back()->text = stream_.expect_any_name();
      node.defaults.push_back(stream_.skip_operator("=") ? expressions_.parse_expression() : nullptr);
    }
    stream_.expect_operator(")");
  }

  NodePtr parse_macro() {
    NodePtr node = expressions_.make(Node::Kind::Macro);
    node->text = stream_.expect_any_name();
    parse_signature(*node);
    node->body = parse_outside_loops("endmacro");
    return node;
  }

  NodePtr parse_call() {
    NodePtr node = expressions_.make(Node::Kind::CallBlock);
    node->text = "caller";
    if (stream_.current().is_operator("(")) parse_signature(*node);
    node->parts.push_back(expressions_.parse_expression());
    if (node->parts.front()->kind != Node::Kind::Call) stream_.fail("expected a call");
    node->body = parse_outside_loops("endcall");
    return node;
  }

  NodePtr parse_filter() {
    NodePtr node = expressions_.make(Node::Kind::FilterBlock);
    node->parts.push_back(expressions_.parse_filters(expressions_.parse_named_filter(nullptr)));
    node->body = parse_body("endfilter");
    return node;
  }

  NodePtr parse_with() {
    NodePtr node = expressions_.make(Node::Kind::With);
    while (stream_.current().kind != Token::Kind::BlockEnd) {
      if (!node->targets.empty()) stream_.expect_operator(",");
      node->targets.push_back(expressions_.parse_target(""));
      stream_.expect_operator("=");
      node->parts.push_back(expressions_.parse_expression());
    }
    node->body = parse_body("endwith");
    return node;
  }

  // Marks what the model wrote, for training; the text is the same.
  NodePtr parse_generation() {
    NodePtr node = expressions_.make(Node::Kind::Scope);
    node->body = parse_outside_loops("endgeneration");
    return node;
  }

  // The body of what becomes a function, which a loop around it can't be left from.
  Nodes parse_outside_loops(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Nodes nodes = parse_body(end);
    loops_ = loops;
    return nodes;
  }

  NodePtr parse_jump(const std::string& name) {
    if (loops_ == 0) stream_.fail("'" + name + "' outside of a loop");
    stream_.expect(Token::Kind::BlockEnd);
    return expressions_.make(name == "break" ? Node::Kind::Break : Node::Kind::Continue);
  }

  TokenStream stream_;
  ExpressionParser expressions_;
  int loops_ = 0;
};

}  // namespace

Nodes parse(std::string_view source) {
  return StatementParser(source).run();
}

}  // namespace quern::chat_template
