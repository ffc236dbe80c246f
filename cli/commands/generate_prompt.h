// The prompt of `quern generate`, and the text that comes behind it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/loaded_model.h"
#include "runtime/generate/generate.h"

namespace quern::cli {

// --prompt, --prompt-file, --ids, --no-special, --tokenizer.
void declare_prompt_options(OptionSet& options);

struct Prompt {
  std::vector<int64_t> ids;
  std::string text;  // as given, or as the chat template wrote it; empty for ids
  bool chat = false;
};
Prompt read_prompt(const Arguments& arguments, const LoadedModel& model);

// The text of --prompt or --prompt-file, else of standard input; asks for one where that is a terminal.
// `wanted`: what may be given otherwise.
std::string read_prompt_text(const Arguments& arguments, const char* wanted);
// Throws Error{BadData} where the model has none, saying that texts need one.
const tokenizer::Tokenizer& tokenizer_of(const LoadedModel& model);

// `goes_on`: the text goes on the prompt's, as an answer does not.
std::unique_ptr<runtime::TextDecoder> streaming_text(const tokenizer::Tokenizer& tokenizer, bool goes_on);

}  // namespace quern::cli
