// quern datastore: texts to retrieve guesses from.
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/commands/commands.h"
#include "cli/files.h"
#include "cli/format.h"
#include "cli/speculation.h"
#include "passes/model_folder.h"
#include "runtime/speculate/datastore.h"

namespace quern::cli {
namespace {

void declare(OptionSet& options) {
  options.positional({.name = "ACTION", .help = "build: index texts", .choices = {"build"}})
      .positional({.name = "CORPUS",
                   .help = "texts, or .jsonl with {\"text\": ...} a line; - is standard input",
                   .repeated = true})
      .text("output,o", "FILE.qds", "where to write (required)")
      .text("tokenizer", "FILE",
            "whose tokens: a tokenizer.json, or a model or artifact that has one (required)")
      .example("quern datastore build manuals/*.txt --tokenizer model.quern -o manuals.qds",
               "indexes texts like those to be written")
      .example("quern generate model.quern -f question.txt --speculate rest --datastore manuals.qds",
               "guesses what is to come from what stands there");
}

// The texts of a file.
std::vector<std::string> texts_of(const std::string& path) {
  const std::string content = read_input(path);
  if (!path.ends_with(".jsonl")) return {content};
  std::vector<std::string> texts;
  std::istringstream lines(content);
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const nlohmann::json value = nlohmann::json::parse(line, nullptr, false);
    if (!value.is_object() || !value.contains("text") || !value["text"].is_string()) {
      throw_error(ErrorCode::BadData, "'", path, "', line ", number, R"(: {"text": "..."} was expected)");
    }
    texts.push_back(value["text"].get<std::string>());
  }
  return texts;
}

ExitStatus run(const Arguments& arguments, Console& console) {
  const std::optional<std::string> output = arguments.text("output");
  if (!output) throw UsageError("missing -o FILE.qds");
  const std::optional<std::string> name = arguments.text("tokenizer");
  if (!name) throw UsageError("missing --tokenizer: a datastore holds tokens of one tokenizer");
  const tokenizer::Tokenizer tokenizer = passes::find_tokenizer(*name).tokenizer;
  std::vector<int64_t> tokens;
  for (const std::string& path : arguments.list("CORPUS")) {
    for (const std::string& text : texts_of(path)) {
      const std::vector<int64_t> ids = tokenizer.encode(text, {.add_special_tokens = false});
      tokens.insert(tokens.end(), ids.begin(), ids.end());
    }
  }
  runtime::Datastore::build(tokens, tokenizer_identity(tokenizer), *output);
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(*output));
  if (console.json()) {
    console.print_json({{"output", *output}, {"tokens", tokens.size()}, {"bytes", bytes}});
  } else {
    console.summary(concat("wrote ", one_line(*output), ": ",
                           format_grouped(static_cast<int64_t>(tokens.size())), " tokens, ",
                           format_bytes(static_cast<double>(bytes)), "\n"));
  }
  return ExitStatus::Ok;
}

}  // namespace

Command datastore_command() {
  return {.name = "datastore",
          .summary = "index texts to guess from",
          .group = "Run",
          .details = "",
          .declare = declare,
          .run = run};
}

}  // namespace quern::cli
