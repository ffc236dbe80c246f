// quern generate: a prompt in, text or ids out.
#include <unistd.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "cli/chat.h"
#include "cli/commands/commands.h"
#include "cli/commands/generate_batch.h"
#include "cli/context_bound.h"
#include "cli/exit_options.h"
#include "cli/files.h"
#include "cli/format.h"
#include "cli/interrupt.h"
#include "cli/loaded_model.h"
#include "cli/prefix_cache.h"
#include "cli/sampling.h"
#include "cli/self_speculation.h"
#include "cli/speculation.h"
#include "formats/tokenizer/utf8.h"
#include "runtime/generate/generate.h"

namespace quern::cli {
namespace {

void declare(OptionSet& options) {
  options
      .positional({.name = "MODEL", .help = "a .quern artifact, an ONNX decoder, or a folder that holds one"})
      .section("Prompt (one of them; default: text on standard input)")
      .text("prompt,p", "TEXT", "the text to go on with")
      .text("prompt-file,f", "FILE", "a file with that text; - is standard input")
      .text("ids", "IDS", "token ids instead, separated by commas; needs no tokenizer")
      .flag("no-special", "leave out what the tokenizer adds around a text, such as <s>")
      .text("tokenizer", "FILE",
            "a tokenizer.json; default: the artifact's own, or the one beside the model");
  declare_batch_options(options);
  declare_chat_options(options);
  options.section("Length")
      .integer("max-tokens,n", "N", {1, 1e9}, "generate at most N tokens", 128)
      .texts("stop", "TEXT", "end where the text would hold this; it is not printed")
      .flag("ignore-eos", "go on after a token that ends texts");
  declare_sampling_options(options);
  options.section("How");
  declare_session_options(options);
  declare_speculation_options(options);
  declare_prefix_options(options);
  declare_exit_options(options);
  options.flag("no-echo", "do not print the prompt before its continuation")
      .example("quern generate model.quern -p \"It was a dark night\" -n 100",
               "goes on with a text, greedily")
      .example("quern generate model.quern -p \"Once\" --temperature 0.8 --top-p 0.95 --seed 7",
               "samples, repeatably")
      .example("quern generate model.quern -p \"Once\" --sample --seed 7",
               "samples as the model's makers suggest")
      .example("quern generate model.quern --chat --system \"Answer briefly.\" -p \"Why is the sky blue?\"",
               "asks a chat model")
      .example("quern generate model.quern -f long.txt --speculate ngram",
               "goes faster where the text repeats itself")
      .example("quern generate model.quern -p \"Once\" --speculate draft --draft small.quern",
               "lets a small model guess what the large one then verifies")
      .example("quern generate model.quern --prompts prompts.jsonl --parallel 8 > texts.jsonl",
               "many texts, eight at a time; what prompts have in common is computed once")
      .example("quern generate model.onnx --ids 1,15043,3186 -n 20 --json", "ids in and out, for scripts");
}

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

struct Prompt {
  std::vector<int64_t> ids;
  std::string text;  // as given, or as the chat template wrote it; empty for ids
  bool chat = false;
};

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
  const bool given_text = arguments.given("prompt") || arguments.given("prompt-file");
  const bool from_messages = arguments.given("messages");
  if (!given_text && !from_messages && ::isatty(STDIN_FILENO) == 1) {
    throw UsageError("no prompt: give -p TEXT, --prompt-file FILE or --ids 1,2,3");
  }
  if (given_text) {
    prompt.text = *prompt_text(arguments);
  } else if (!from_messages) {
    prompt.text = read_input("-");
  }
  if (!model.tokenizer) {
    throw_error(ErrorCode::BadData, "'", model.file.path.string(),
                "' has no tokenizer, so that text means nothing to it; "
                "give --tokenizer tokenizer.json, or token ids with --ids 1,2,3");
  }
  if (prompt.chat) prompt.text = chat_prompt(arguments, model, prompt.text);
  const bool special = !prompt.chat && !arguments.flag("no-special");
  prompt.ids = model.tokenizer->encode(prompt.text, {.add_special_tokens = special});
  if (prompt.ids.empty()) {
    throw_error(ErrorCode::BadData, "the prompt is empty; a model needs at least one token to go on from");
  }
  return prompt;
}

std::string rate_text(double rate) {
  return format_grouped(std::llround(rate)) + " tokens/s";
}

std::string timing_text(const runtime::GenerateOutput& output, const Sampling& sampling) {
  const runtime::GenerateTiming& timing = output.timing;
  std::string text =
      concat("prompt: ", timing.prompt_tokens, " tokens in ", format_seconds(timing.prefill_seconds), " (",
             rate_text(timing.prefill_rate()), ")");
  if (timing.cached_tokens > 0) text += concat(", ", timing.cached_tokens, " of them computed before");
  if (timing.decode_tokens > 0) {
    text += concat("; generated: ", timing.generated_tokens, " tokens, ", rate_text(timing.decode_rate()));
  }
  return text + "; " + sampling_text(sampling) + "; ended by " +
         std::string(runtime::to_string(output.results.front().finish));
}

nlohmann::ordered_json to_json(const Prompt& prompt, const runtime::GenerateOutput& output,
                               const LoadedModel& model, const runtime::SamplingOptions& sampling,
                               int64_t context) {
  const runtime::GenerateResult& result = output.results.front();
  const runtime::GenerateTiming& timing = output.timing;
  nlohmann::ordered_json object = {{"prompt_ids", prompt.ids}, {"ids", result.ids}};
  if (prompt.chat) object["prompt"] = tokenizer::to_valid_utf8(prompt.text);
  object["text"] = model.tokenizer ? nlohmann::ordered_json(result.text) : nlohmann::ordered_json();
  object["finish_reason"] = runtime::to_string(result.finish);
  object["stop"] = result.stop.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(result.stop);
  object["sampling"] = sampling_json(sampling);
  object["context"] = context;
  object["timing"] = {{"load_seconds", model.seconds},
                      {"prompt_tokens", timing.prompt_tokens},
                      {"cached_tokens", timing.cached_tokens},
                      {"generated_tokens", timing.generated_tokens},
                      {"prefill_seconds", timing.prefill_seconds},
                      {"decode_seconds", timing.decode_seconds},
                      {"first_token_seconds", timing.first_token_seconds},
                      {"prefill_tokens_per_second", timing.prefill_rate()},
                      {"decode_tokens_per_second", timing.decode_rate()}};
  if (output.speculation) object["speculation"] = speculation_json(*output.speculation);
  return object;
}

// Prints what is generated as it comes, behind the prompt, which is not printed before it has turned out to
// be one that the model takes.
class Printer {
 public:
  Printer(Console& console, bool text, std::string prompt)
      : console_(console), text_(text), prompt_(std::move(prompt)) {}
  void print_prompt() {
    console_.print(prompt_);
    prompt_.clear();
  }
  void operator()(const runtime::GenerateEvent& event) {
    print_prompt();
    if (text_) {
      console_.print(event.text);
    } else {
      for (const int64_t id : event.ids) {
        console_.print((any_ ? "," : "") + std::to_string(id));
        any_ = true;
      }
    }
    console_.flush();
  }

 private:
  Console& console_;
  bool text_;
  std::string prompt_;
  bool any_ = false;
};

ExitStatus run(const Arguments& arguments, Console& console) {
  LoadedModel model =
      load_decoder(arguments.text_of("MODEL"), arguments.text("tokenizer"), console, "quern generate");
  prepare_self_speculation(arguments, model);
  const std::optional<runtime::ExitRule> exits = exit_rule(arguments);
  if (exits) {
    // What is kept of a text with exits is not what the whole model would have kept.
    for (const char* other : {"speculate", "prefix-cache"}) {
      if (arguments.given(other)) throw UsageError(concat("--exit and --", other, " exclude one another"));
    }
    prepare_exits(*exits, model);
  }
  const bool many = arguments.given("prompts");
  const Prompt prompt = many ? Prompt{} : read_prompt(arguments, model);
  const Sampling sampling = read_sampling(arguments, model.file.folder.generation);
  runtime::SessionOptions session_settings = with_cache_memory(session_options(arguments), arguments);
  session_settings = with_context_bound(session_settings, model.program->traits(),
                                        many ? arguments.integer_of("parallel") : 1);
  runtime::Session session(model.program, session_settings);
  std::unique_ptr<runtime::PrefixCache> prefixes;
  if (!exits && (many || arguments.given("prefix-cache")))
    prefixes = open_prefix_cache(arguments, model, session, console);
  const InterruptRequest interrupt;

  runtime::GenerateOptions options;
  options.max_new_tokens = arguments.integer_of("max-tokens");
  if (!arguments.flag("ignore-eos")) options.end_ids = model.end_ids;
  options.stop = arguments.list("stop");
  options.sampling = sampling.options;
  if (model.tokenizer) options.sampling.vocabulary = model.tokenizer->vocab_size();
  options.cancel = &interrupt.requested();
  options.strategy = speculation(arguments, model, console);
  const auto exit_statistics = std::make_shared<runtime::ExitStatistics>();
  if (exits) options.strategy = with_exits(*exits, model, exit_statistics);
  options.prefix_cache = prefixes.get();
  if (model.tokenizer) {
    options.decoder = [&] {
      return std::make_unique<StreamingText>(*model.tokenizer, !wants_chat(arguments));
    };
  } else if (!options.stop.empty()) {
    throw UsageError("--stop needs a tokenizer; the model has none");
  }
  if (many) return generate_batch(arguments, console, model, session, options);
  const bool stream = !console.json();
  std::string echo;
  if (model.tokenizer && !prompt.chat && !arguments.flag("no-echo")) {
    echo = prompt.text.empty() ? model.tokenizer->decode(prompt.ids, {.skip_special_tokens = true})
                               : prompt.text;
  }
  const std::vector<std::vector<int64_t>> prompts = {prompt.ids};
  Printer printer(console, model.tokenizer.has_value(), echo);
  runtime::GenerateCallback callback;
  if (stream) callback = std::ref(printer);
  const runtime::GenerateOutput output = runtime::generate(session, prompts, options, callback);
  if (stream) {
    printer.print_prompt();
    console.print("\n");
    console.flush();
    console.note(timing_text(output, sampling));
    if (output.speculation) console.note(speculation_text(*output.speculation));
    const bool bounded = model.program->traits().context == 0 && !arguments.given("context");
    if (bounded && output.results.front().finish == runtime::FinishReason::Context) {
      console.note(concat("the model states no context length; ", session_settings.context,
                          " tokens are what half of the memory at hand holds (--context N: another limit)"));
    }
    if (exits) console.note(exit_text(*exit_statistics));
  } else {
    nlohmann::ordered_json object =
        to_json(prompt, output, model, sampling.options, session.options().context);
    if (exits) object["exits"] = exit_json(*exit_statistics);
    console.print_json(object);
  }
  return output.results.front().finish == runtime::FinishReason::Cancelled ? ExitStatus::Interrupted
                                                                           : ExitStatus::Ok;
}

}  // namespace

Command generate_command() {
  return {.name = "generate",
          .summary = "go on with a text",
          .group = "Run",
          .details = "",
          .declare = declare,
          .run = run};
}

}  // namespace quern::cli
