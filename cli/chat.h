// Prompts that are conversations, written as the model's chat template wants them.
#pragma once

#include <string>

#include "cli/loaded_model.h"
#include "cli/options.h"

namespace quern::cli {

// --chat, --system, --messages, --chat-template, --chat-set.
void declare_chat_options(OptionSet& options);

// Whether any of them asks for a conversation. Throws UsageError where they contradict one another or
// `--ids`.
bool wants_chat(const Arguments& arguments);

// The prompt for the answer to --messages, or to `text` as what the user says. To be encoded without what the
// tokenizer adds around a text: the template writes that itself. Throws UsageError, Error{BadData} where the
// model has no template, and what templates throw.
std::string chat_prompt(const Arguments& arguments, const LoadedModel& model, const std::string& text);

}  // namespace quern::cli
