// quern tokenize: text to ids and back, to see what a model is given.
#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/files.h"
#include "cli/table.h"
#include "formats/tokenizer/tokenizer.h"

namespace quern::cli {
namespace {

void declare(OptionSet& options) {
  options
      .positional({.name = "TOKENIZER",
                   .help = "a tokenizer.json, a folder that holds one, or a model or artifact that has one"})
      .section("Input (one of them; default: text on standard input)")
      .text("prompt,p", "TEXT", "the text to encode")
      .text("prompt-file", "FILE", "a file with the text to encode; - is standard input")
      .text("ids", "IDS", "ids to decode, separated by commas")
      .section("How")
      .flag("no-special", "leave out what the tokenizer adds around a text, such as <s>")
      .flag("pieces", "a line per token: id and spelling")
      .example("quern tokenize tokenizer.json -p \"Once upon a time\"", "prints the ids, separated by commas")
      .example("quern tokenize model.quern --ids 288,338,752", "prints the text")
      .example("quern tokenize tokenizer.json --prompt-file book.txt --json | jq .count", "counts tokens");
}

nlohmann::ordered_json pieces_json(const tokenizer::Tokenizer& tokenizer, const std::vector<int64_t>& ids) {
  nlohmann::ordered_json pieces = nlohmann::ordered_json::array();
  for (const int64_t id : ids) pieces.push_back(tokenizer.token_of(id).value_or(""));
  return pieces;
}

std::string pieces_table(const tokenizer::Tokenizer& tokenizer, const std::vector<int64_t>& ids) {
  Table table({{"id", Align::Right}, {"token"}});
  for (const int64_t id : ids) {
    table.add_row({std::to_string(id), one_line(tokenizer.token_of(id).value_or("(none)"))});
  }
  return table.to_string();
}

ExitStatus run(const Arguments& arguments, Console& console) {
  const tokenizer::Tokenizer tokenizer = find_tokenizer(arguments.text_of("TOKENIZER"));
  std::vector<int64_t> ids;
  std::string text;
  const bool decode = arguments.given("ids");
  if (decode) {
    ids = parse_ids(arguments.text_of("ids"), "--ids");
    text = tokenizer.decode(ids);
  } else {
    text = prompt_text(arguments).value_or("");
    if (!arguments.given("prompt") && !arguments.given("prompt-file")) text = read_input("-");
    ids = tokenizer.encode(text, {.add_special_tokens = !arguments.flag("no-special")});
  }
  if (console.json()) {
    nlohmann::ordered_json object = {{"ids", ids}, {"text", text}, {"count", ids.size()}};
    if (arguments.flag("pieces")) object["pieces"] = pieces_json(tokenizer, ids);
    console.print_json(object);
  } else if (arguments.flag("pieces")) {
    console.print(pieces_table(tokenizer, ids));
  } else {
    console.print((decode ? text : join_ids(ids)) + "\n");
  }
  return ExitStatus::Ok;
}

}  // namespace

Command tokenize_command() {
  return {.name = "tokenize",
          .summary = "text to token ids and back",
          .group = "Look",
          .details = "",
          .declare = declare,
          .run = run};
}

}  // namespace quern::cli
