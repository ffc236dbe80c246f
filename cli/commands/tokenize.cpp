// quern tokenize: text to ids and back, to see what a model is given.
#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/files.h"
#include "cli/table.h"
#include "formats/tokenizer/utf8.h"
#include "ir/error.h"
#include "passes/model_folder.h"

namespace quern::cli {
namespace {

void declare(OptionSet& options) {
  options
      .positional({.name = "TOKENIZER",
                   .help = "a tokenizer.json, SentencePiece .model, tiktoken file or llama2.c tokenizer.bin, "
                           "a folder that "
                           "holds one, or a model or artifact that has one"})
      .section("Input (one of them; default: text on standard input)")
      .text("text,p", "TEXT", "the text to encode")
      .text("file", "FILE", "a file with the text to encode; - is standard input")
      .text("decode", "IDS", "ids to decode, separated by commas")
      .section("How")
      .flag("no-special",
            "leave out what the tokenizer adds around a text, such as <s>; when decoding, all special tokens")
      .flag("clean-up-spaces", "when decoding, take the spaces before punctuation away, as transformers can")
      .flag("pieces", "a line per token: id and spelling")
      .example("quern tokenize tokenizer.json --text \"Once upon a time\"",
               "prints the ids, separated by commas")
      .example("quern tokenize model.quern --decode 288,338,752", "prints the text")
      .example("quern tokenize tokenizer.json --file book.txt --json | jq .count", "counts tokens");
}

std::vector<std::string> spellings(const tokenizer::Tokenizer& tokenizer, const std::vector<int64_t>& ids) {
  std::vector<std::string> tokens;
  for (const int64_t id : ids) {
    const auto token = tokenizer.token_of(id);
    if (!token) {
      throw_error(ErrorCode::InvalidArgument, "the tokenizer has no token ", id, "; its ids are below ",
                  tokenizer.vocab_size());
    }
    tokens.push_back(*token);
  }
  return tokens;
}

std::string pieces_table(const std::vector<int64_t>& ids, const std::vector<std::string>& tokens) {
  Table table({{"id", Align::Right}, {"token"}});
  for (size_t i = 0; i < ids.size(); ++i) table.add_row({std::to_string(ids[i]), one_line(tokens[i])});
  return table.to_string();
}

std::string input_text(const Arguments& arguments) {
  if (arguments.given("text")) return arguments.text_of("text");
  return read_input(arguments.text("file").value_or("-"));
}

ExitStatus run(const Arguments& arguments, Console& console) {
  if (arguments.given("text") + arguments.given("file") + arguments.given("decode") > 1) {
    throw UsageError("--text, --file and --decode exclude one another");
  }
  const tokenizer::Tokenizer tokenizer = passes::find_tokenizer(arguments.text_of("TOKENIZER")).tokenizer;
  const bool decode = arguments.given("decode");
  const bool special = !arguments.flag("no-special");
  std::string text = decode ? "" : input_text(arguments);
  const std::vector<int64_t> ids = decode ? parse_ids(arguments.text_of("decode"), "--decode")
                                          : tokenizer.encode(text, {.add_special_tokens = special});
  const std::vector<std::string> tokens = spellings(tokenizer, ids);
  if (decode) {
    text = tokenizer.decode(
        ids, {.skip_special_tokens = !special, .clean_up_spaces = arguments.flag("clean-up-spaces")});
  }
  if (console.json()) {
    console.print_json(
        {{"ids", ids}, {"tokens", tokens}, {"text", tokenizer::to_valid_utf8(text)}, {"count", ids.size()}});
  } else if (arguments.flag("pieces")) {
    console.print(pieces_table(ids, tokens));
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
