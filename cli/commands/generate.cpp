// quern generate: a prompt in, text or ids out.
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "cli/chat.h"
#include "cli/commands/commands.h"
#include "cli/commands/generate_batch.h"
#include "cli/commands/generate_job.h"
#include "cli/commands/generate_outline.h"
#include "cli/commands/generate_prompt.h"
#include "cli/context_bound.h"
#include "cli/context_shift.h"
#include "cli/format.h"
#include "cli/interrupt.h"
#include "cli/prefix_cache.h"
#include "cli/self_speculation.h"
#include "cli/speculation.h"
#include "formats/tokenizer/utf8.h"

namespace quern::cli {
namespace {

void declare(OptionSet& options) {
  options.positional(
      {.name = "MODEL", .help = "a .quern artifact, an ONNX decoder, or a folder that holds one"});
  declare_prompt_options(options);
  declare_batch_options(options);
  declare_chat_options(options);
  declare_outline_options(options);
  options.section("Length")
      .integer("max-tokens,n", "N", {1, 1e9}, "generate at most N tokens", 128)
      .texts("stop", "TEXT", "end where the text would hold this; it is not printed")
      .flag("ignore-eos", "go on after a token that ends texts");
  declare_context_shift_options(options);
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
      .example("quern generate model.quern --prompts prompts.jsonl --instances 2 > texts.jsonl",
               "many texts by two decoders side by side, each on cores of its own")
      .example("quern generate model.quern -p \"Once\" -n 5000 --context-shift",
               "a text longer than the model's context")
      .example("quern generate model.quern --outline -p \"How do I learn to swim?\"",
               "asks for the points of an answer, then writes all of them at once")
      .example("quern generate model.onnx --ids 1,15043,3186 -n 20 --json", "ids in and out, for scripts");
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
                               const GenerateJob& job, runtime::Session& session) {
  const runtime::GenerateResult& result = output.results.front();
  const runtime::GenerateTiming& timing = output.timing;
  nlohmann::ordered_json object = {{"prompt_ids", prompt.ids}, {"ids", result.ids}};
  if (prompt.chat) object["prompt"] = tokenizer::to_valid_utf8(prompt.text);
  object["text"] = job.model.tokenizer ? nlohmann::ordered_json(result.text) : nlohmann::ordered_json();
  object["finish_reason"] = runtime::to_string(result.finish);
  object["stop"] = result.stop.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(result.stop);
  object["sampling"] = sampling_json(job.sampling.options);
  object["context"] = session.options().context;
  object["timing"] = {{"load_seconds", job.model.seconds},
                      {"prompt_tokens", timing.prompt_tokens},
                      {"cached_tokens", timing.cached_tokens},
                      {"generated_tokens", timing.generated_tokens},
                      {"prefill_seconds", timing.prefill_seconds},
                      {"decode_seconds", timing.decode_seconds},
                      {"first_token_seconds", timing.first_token_seconds},
                      {"prefill_tokens_per_second", timing.prefill_rate()},
                      {"decode_tokens_per_second", timing.decode_rate()}};
  add_optional_json(object, job, session, output);
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

// What --exit goes together with. What is kept of a text with exits is not what the whole model would have
// kept.
void check_exits(const Arguments& arguments) {
  for (const char* other : {"speculate", "prefix-cache", "outline", "outline-file"}) {
    if (arguments.given(other)) throw UsageError(concat("--exit and --", other, " exclude one another"));
  }
}

// Texts that are decoded at the same time.
int64_t texts_at_once(const Arguments& arguments) {
  if (wants_outline(arguments)) return kOutlineTexts;
  if (!arguments.given("prompts")) return 1;
  return arguments.integer_of("parallel") * arguments.integer("instances").value_or(1);
}

void fill_in(GenerateJob& job, const InterruptRequest& interrupt) {
  const Arguments& arguments = job.arguments;
  const LoadedModel& model = job.model;
  job.session = with_context_bound(with_cache_memory(session_options(arguments), arguments),
                                   model.program->traits(), texts_at_once(arguments));
  runtime::GenerateOptions& options = job.options;
  options.max_new_tokens = arguments.integer_of("max-tokens");
  if (!arguments.flag("ignore-eos")) options.end_ids = model.end_ids;
  options.stop = arguments.list("stop");
  options.shift_keep = shift_keep(arguments);
  options.sampling = job.sampling.options;
  if (model.tokenizer) options.sampling.vocabulary = model.tokenizer->vocab_size();
  options.cancel = &interrupt.requested();
  options.strategy = speculation(arguments, model, job.console);
  if (job.exits) options.strategy = with_exits(*job.exits, model, job.exit_statistics);
  if (model.tokenizer) {
    const bool goes_on = !wants_chat(arguments) && !wants_outline(arguments);
    options.decoder = [&model, goes_on] { return streaming_text(*model.tokenizer, goes_on); };
  } else if (!options.stop.empty()) {
    throw UsageError("--stop needs a tokenizer; the model has none");
  }
}

// The prompt as it is printed before its continuation.
std::string echo_of(const GenerateJob& job, const Prompt& prompt) {
  if (!job.model.tokenizer || prompt.chat || job.arguments.flag("no-echo")) return {};
  return prompt.text.empty() ? job.model.tokenizer->decode(prompt.ids, {.skip_special_tokens = true})
                             : prompt.text;
}

ExitStatus generate_one(GenerateJob& job, const Prompt& prompt) {
  Console& console = job.console;
  const LoadedModel& model = job.model;
  runtime::Session session(model.program, job.session);
  std::unique_ptr<runtime::PrefixCache> prefixes;
  if (job.arguments.given("prefix-cache"))
    prefixes = open_prefix_cache(job.arguments, model, session, console);
  job.options.prefix_cache = prefixes.get();
  const bool stream = !console.json();
  const std::vector<std::vector<int64_t>> prompts = {prompt.ids};
  Printer printer(console, model.tokenizer.has_value(), echo_of(job, prompt));
  runtime::GenerateCallback callback;
  if (stream) callback = std::ref(printer);
  const runtime::GenerateOutput output = runtime::generate(session, prompts, job.options, callback);
  if (!stream) {
    console.print_json(to_json(prompt, output, job, session));
    return status_of(output);
  }
  printer.print_prompt();
  console.print("\n");
  console.flush();
  console.note(timing_text(output, job.sampling));
  const bool bounded = model.program->traits().context == 0 && !job.arguments.given("context");
  if (bounded && output.results.front().finish == runtime::FinishReason::Context) {
    console.note(concat("the model states no context length; ", job.session.context,
                        " tokens are what half of the memory at hand holds (--context N: another limit)"));
  }
  note_optional(job, session, output);
  return status_of(output);
}

ExitStatus run(const Arguments& arguments, Console& console) {
  GenerateJob job{.arguments = arguments,
                  .console = console,
                  .model = load_decoder(arguments.text_of("MODEL"), arguments.text("tokenizer"), console,
                                        "quern generate")};
  prepare_self_speculation(arguments, job.model);
  job.exits = exit_rule(arguments);
  if (job.exits) {
    check_exits(arguments);
    prepare_exits(*job.exits, job.model);
    job.exit_statistics = std::make_shared<runtime::ExitStatistics>();
  }
  const bool outline = wants_outline(arguments), many = arguments.given("prompts");
  check_batch_options(arguments);
  const Prompt prompt = many || outline ? Prompt{} : read_prompt(arguments, job.model);
  job.sampling = read_sampling(arguments, job.model.file.folder.generation);
  const InterruptRequest interrupt;
  fill_in(job, interrupt);
  if (outline) return generate_outline(job);
  return many ? generate_batch(job) : generate_one(job, prompt);
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
