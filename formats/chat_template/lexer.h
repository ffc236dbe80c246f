// Jinja's tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quern::chat_template {

struct Token {
  enum class Kind {
    Data,
    VariableBegin,
    VariableEnd,
    BlockBegin,
    BlockEnd,
    Name,
    String,
    Int,
    Float,
    Operator,
    End
  };
  Kind kind = Kind::End;
  std::string text;  // of Data, Name, Operator; of String without quotes and escapes
  int64_t integer = 0;
  double real = 0.0;
  int line = 1;

  bool is(Kind wanted, std::string_view wanted_text) const { return kind == wanted && text == wanted_text; }
  bool is_name(std::string_view name) const { return is(Kind::Name, name); }
  bool is_operator(std::string_view name) const { return is(Kind::Operator, name); }
};

// The tokens of a template, with blocks trimmed (trim_blocks, lstrip_blocks) as chat templates expect. Throws
// Error{InvalidModel} naming the line.
std::vector<Token> tokenize(std::string_view source);

// What a token is called in a message.
std::string describe(const Token& token);

}  // namespace quern::chat_template
