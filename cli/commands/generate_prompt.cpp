#include "cli/commands/generate_prompt.h"

#include <unistd.h>

#include <algorithm>

#include "cli/chat.h"
#include "cli/files.h"

namespace quern::cli {
namespace {

class StreamingText : public runtime::TextDecoder {
 public:
  // `goes_on`: the text goes on the prompt's, as an answer does not.
  StreamingText(const tokenizer::Tokenizer& tokenizer, bool goes_on)
      : tokenizer_(tokenizer), goes_on_(goes_on), decoder_(tokenizer, kOptions) {}

  // SentencePiece and its like take the space of a text's first token away, so that the prompt is decoded
  // too.
  void begin(std::span<const int64_t> prompt) override {
    if (!goes_on_) return;
    tokenizer::StreamDecoder ended(tokenizer_, kOptions);
    for (const int64_t id : prompt) {
      decoder_.push(id);
      ended.push(id);
    }
    held_ = ended.finish();
  }
  std::string push(int64_t id) override { return beyond_prompt(decoder_.push(id)); }
  std::string finish() override { return beyond_prompt(decoder_.finish()); }

 private:
  static constexpr tokenizer::DecodeOptions kOptions{.skip_special_tokens = true};

  // The end of the prompt may come only with the first token after it.
  std::string beyond_prompt(std::string text) {
    if (held_.empty() || text.empty()) return text;
    const auto [ours, theirs] = std::mismatch(text.begin(), text.end(), held_.begin(), held_.end());
    text.erase(text.begin(), ours);
    held_.clear();
    return text;
  }

  const tokenizer::Tokenizer& tokenizer_;
  bool goes_on_;
  tokenizer::StreamDecoder decoder_;
  std::string held_;
};

}  // namespace

void declare_prompt_options(OptionSet& options) {
  options.section("Prompt (one of them; default: text on standard input)")
      .text("prompt,p", "TEXT", "the text to go on with")
      .text("prompt-file,f", "FILE", "a file with that text; - is standard input")
      .text("ids", "IDS", "token ids instead, separated by commas; needs no tokenizer")
      .flag("no-special", "leave out what the tokenizer adds around a text, such as <s>")
      .text("tokenizer", "FILE",
            "a tokenizer.json; default: the artifact's own, or the one beside the model");
}

std::string read_prompt_text(const Arguments& arguments, const char* wanted) {
  if (arguments.given("prompt") || arguments.given("prompt-file")) return *prompt_text(arguments);
  if (::isatty(STDIN_FILENO) == 1) throw UsageError(concat("no prompt: give ", wanted));
  return read_input("-");
}

const tokenizer::Tokenizer& tokenizer_of(const LoadedModel& model) {
  if (model.tokenizer) return *model.tokenizer;
  throw_error(ErrorCode::BadData, "'", model.file.path.string(),
              "' has no tokenizer, so that text means nothing to it; "
              "give --tokenizer tokenizer.json, or token ids with --ids 1,2,3");
}

Prompt read_prompt(const Arguments& arguments, const LoadedModel& model) {
  Prompt prompt;
  prompt.chat = wants_chat(arguments);
  if (const auto ids = arguments.text("ids")) {
    if (arguments.given("prompt") || arguments.given("prompt-file")) {
      throw UsageError("--ids and a text are both given; one prompt is enough");
    }
    prompt.ids = parse_ids(*ids, "--ids");
    return prompt;
  }
  const bool given = arguments.given("prompt") || arguments.given("prompt-file");
  if (given || !arguments.given("messages"))
    prompt.text = read_prompt_text(arguments, "-p TEXT, --prompt-file FILE or --ids 1,2,3");
  const tokenizer::Tokenizer& tokenizer = tokenizer_of(model);
  if (prompt.chat) prompt.text = chat_prompt(arguments, model, prompt.text);
  const bool special = !prompt.chat && !arguments.flag("no-special");
  prompt.ids = tokenizer.encode(prompt.text, {.add_special_tokens = special});
  if (prompt.ids.empty()) {
    throw_error(ErrorCode::BadData, "the prompt is empty; a model needs at least one token to go on from");
  }
  return prompt;
}

std::unique_ptr<runtime::TextDecoder> streaming_text(const tokenizer::Tokenizer& tokenizer, bool goes_on) {
  return std::make_unique<StreamingText>(tokenizer, goes_on);
}

}  // namespace quern::cli
