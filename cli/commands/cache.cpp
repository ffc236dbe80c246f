// quern cache: keys and values of a text, computed once and kept on disk.
#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/files.h"
#include "cli/format.h"
#include "cli/loaded_model.h"
#include "cli/prefix_cache.h"
#include "runtime/prefix/sequence_file.h"

namespace quern::cli {
namespace {

void declare(OptionSet& options) {
  options
      .positional({.name = "ACTION",
                   .help = "build: compute a text's keys and values and write them",
                   .choices = {"build"}})
      .positional({.name = "MODEL", .help = "the decoder that will go on from the text"})
      .text("prompt,p", "TEXT", "the text")
      .text("prompt-file,f", "FILE", "a file with the text; - is standard input")
      .text("ids", "IDS", "token ids instead, separated by commas; needs no tokenizer")
      .flag("no-special", "leave out what the tokenizer adds around a text, such as <s>")
      .text("output,o", "FILE.qkv", "where to write (required)")
      .text("tokenizer", "FILE",
            "a tokenizer.json; default: the artifact's own, or the one beside the model");
  declare_session_options(options);
  options
      .example("quern cache build model.quern --prompt-file system.txt -o system.qkv",
               "computes a system prompt once")
      .example("quern generate model.quern -f question.txt --prefix-cache system.qkv",
               "and begins with it without computing it again");
}

std::vector<int64_t> ids_of(const Arguments& arguments, const LoadedModel& model) {
  if (const auto ids = arguments.text("ids")) return parse_ids(*ids, "--ids");
  const std::optional<std::string> text = prompt_text(arguments);
  if (!text) throw UsageError("no text: give --prompt-file FILE, -p TEXT or --ids 1,2,3");
  if (!model.tokenizer) {
    throw_error(ErrorCode::BadData, "'", model.file.path.string(),
                "' has no tokenizer; give --tokenizer tokenizer.json, or token ids with --ids 1,2,3");
  }
  return model.tokenizer->encode(*text, {.add_special_tokens = !arguments.flag("no-special")});
}

ExitStatus run(const Arguments& arguments, Console& console) {
  const std::optional<std::string> output = arguments.text("output");
  if (!output) throw UsageError("missing -o FILE.qkv");
  const LoadedModel model =
      load_decoder(arguments.text_of("MODEL"), arguments.text("tokenizer"), console, "quern cache");
  const std::vector<int64_t> ids = ids_of(arguments, model);
  if (ids.empty()) throw_error(ErrorCode::BadData, "the text is empty: there is nothing to keep");
  runtime::Session session(model.program, session_options(arguments));
  runtime::Sequence sequence = session.new_sequence();
  session.run(sequence, ids);
  runtime::save_sequence(sequence, *output, identity_of(model.file));
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(*output));
  if (console.json()) {
    console.print_json({{"output", *output}, {"tokens", ids.size()}, {"bytes", bytes}});
  } else {
    console.summary(concat("wrote ", one_line(*output), ": keys and values of ",
                           format_grouped(sequence.size()), " tokens, ",
                           format_bytes(static_cast<double>(bytes)), "\n"));
  }
  return ExitStatus::Ok;
}

}  // namespace

Command cache_command() {
  return {.name = "cache",
          .summary = "compute a text once, for prompts that begin with it",
          .group = "Run",
          .details = "",
          .declare = declare,
          .run = run};
}

}  // namespace quern::cli
