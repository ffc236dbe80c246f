#include "cli/commands/generate_batch.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/files.h"
#include "cli/format.h"
#include "cli/prefix_cache.h"
#include "formats/tokenizer/utf8.h"
#include "runtime/generate/instances.h"

namespace quern::cli {
namespace {

using nlohmann::ordered_json;
using Prompts = std::vector<std::vector<int64_t>>;

// One line of the file: a string, or an object with "prompt", "text" or "ids".
std::vector<int64_t> prompt_of(const std::string& line, const std::string& where, const LoadedModel& model,
                               bool special) {
  const ordered_json value = ordered_json::parse(line, nullptr, false);
  const auto refuse = [&](std::string_view why) {
    throw_error(ErrorCode::BadData, where, ": ", why,
                R"(; a prompt is "text", {"prompt": "text"} or {"ids": [1, 2, 3]})");
  };
  if (value.is_discarded()) refuse("no JSON");
  if (value.is_object() && value.contains("ids")) {
    const ordered_json& ids = value["ids"];
    if (!ids.is_array() || ids.empty()) refuse("ids are no list");
    for (const ordered_json& id : ids) {
      if (!id.is_number_integer()) refuse("an id is no whole number");
    }
    return ids.get<std::vector<int64_t>>();
  }
  const char* key = value.is_object() && value.contains("text") ? "text" : "prompt";
  const ordered_json& text = value.is_object() && value.contains(key) ? value[key] : value;
  if (!text.is_string()) refuse("no prompt in it");
  if (!model.tokenizer) refuse("the model has no tokenizer for a text");
  auto ids = model.tokenizer->encode(text.get_ref<const std::string&>(), {.add_special_tokens = special});
  if (ids.empty()) refuse("the prompt is empty");
  return ids;
}

Prompts read_prompts(const Arguments& arguments, const LoadedModel& model) {
  for (const char* other : {"prompt", "prompt-file", "ids", "messages", "chat", "outline", "outline-file"}) {
    if (arguments.given(other)) throw UsageError(concat("--prompts and --", other, " are both given"));
  }
  const std::string path = *arguments.text("prompts");
  std::istringstream lines(read_input(path));
  Prompts prompts;
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    prompts.push_back(
        prompt_of(line, concat("'", path, "', line ", number), model, !arguments.flag("no-special")));
  }
  if (prompts.empty()) throw_error(ErrorCode::BadData, "'", path, "' holds no prompt");
  return prompts;
}

ordered_json result_json(size_t prompt, const runtime::GenerateResult& result, const GenerateJob& job) {
  ordered_json object = {{"prompt", prompt}, {"ids", result.ids}};
  object["text"] = job.model.tokenizer ? ordered_json(tokenizer::to_valid_utf8(result.text)) : ordered_json();
  object["finish_reason"] = runtime::to_string(result.finish);
  object["stop"] = result.stop.empty() ? ordered_json() : ordered_json(result.stop);
  if (job.options.shift_keep) object["context_shifts"] = result.context_shifts;
  return object;
}

// A line of JSON for each text as it ends; gathered here, since a text is printed before all of them are
// there.
class LinePrinter {
 public:
  LinePrinter(const GenerateJob& job, size_t prompts) : job_(job), so_far_(prompts) {}
  void operator()(const runtime::GenerateEvent& event) {
    runtime::GenerateResult& result = so_far_[event.prompt];
    result.ids.insert(result.ids.end(), event.ids.begin(), event.ids.end());
    result.text += event.text;
    if (!event.finished) return;
    ordered_json line = {{"prompt", event.prompt}, {"ids", result.ids}};
    line["text"] =
        job_.model.tokenizer ? ordered_json(tokenizer::to_valid_utf8(result.text)) : ordered_json();
    job_.console.print(line.dump() + "\n");
    job_.console.flush();
  }

 private:
  const GenerateJob& job_;
  std::vector<runtime::GenerateResult> so_far_;
};

struct Outcome {
  runtime::GenerateOutput output;
  std::optional<runtime::PrefixCacheStatistics> prefixes;
  int64_t instances = 1;
  int threads = 0;  // of all instances
};

// Texts with exits leave nothing that others could begin with.
std::unique_ptr<runtime::PrefixCache> prefix_cache_of(const GenerateJob& job, runtime::Session& session) {
  if (job.exits) return nullptr;
  return open_prefix_cache(job.arguments, job.model, session, job.console);
}

Outcome by_one(GenerateJob& job, runtime::Session& session, const Prompts& prompts,
               const runtime::GenerateCallback& callback) {
  const std::unique_ptr<runtime::PrefixCache> cache = prefix_cache_of(job, session);
  job.options.prefix_cache = cache.get();
  Outcome outcome{.output = runtime::generate(session, prompts, job.options, callback),
                  .threads = session.threads()};
  if (cache != nullptr) outcome.prefixes = cache->statistics();
  job.options.prefix_cache = nullptr;
  return outcome;
}

Outcome by_instances(const GenerateJob& job, runtime::Instances& instances, const Prompts& prompts,
                     const runtime::GenerateCallback& callback) {
  std::vector<std::unique_ptr<runtime::PrefixCache>> caches;
  std::vector<std::shared_ptr<runtime::ExitStatistics>> exits;
  const auto prepare = [&](int instance, runtime::GenerateOptions& options) {
    caches.push_back(prefix_cache_of(job, instances.session(instance)));
    options.prefix_cache = caches.back().get();
    if (!job.exits) return;
    exits.push_back(std::make_shared<runtime::ExitStatistics>());
    options.strategy = with_exits(*job.exits, job.model, exits.back());
  };
  Outcome outcome{.output = instances.generate(prompts, job.options, callback, prepare),
                  .instances = instances.size(),
                  .threads = instances.threads()};
  for (const auto& cache : caches) {
    if (cache == nullptr) continue;
    if (!outcome.prefixes) outcome.prefixes.emplace();
    *outcome.prefixes += cache->statistics();
  }
  for (const auto& statistics : exits) *job.exit_statistics += *statistics;
  return outcome;
}

ordered_json timing_json(const Outcome& outcome, int64_t parallel) {
  const runtime::GenerateTiming& timing = outcome.output.timing;
  return {{"parallel", parallel},
          {"instances", outcome.instances},
          {"threads", outcome.threads},
          {"prompt_tokens", timing.prompt_tokens},
          {"cached_tokens", timing.cached_tokens},
          {"generated_tokens", timing.generated_tokens},
          {"put_back", timing.put_back},
          {"seconds", timing.seconds},
          {"first_token_seconds", timing.first_token_seconds},
          {"tokens_per_second", throughput(timing)}};
}

std::string summary(const Outcome& outcome) {
  const runtime::GenerateTiming& timing = outcome.output.timing;
  std::string text =
      concat(outcome.output.results.size(), " prompts of ", format_grouped(timing.prompt_tokens), " tokens, ",
             format_grouped(timing.cached_tokens), " of them computed before; generated ",
             format_grouped(timing.generated_tokens), " tokens in ", format_seconds(timing.seconds), ", ",
             format_grouped(std::llround(throughput(timing))), " tokens/s");
  if (outcome.instances > 1) text += concat(", by ", outcome.instances, " instances");
  if (timing.put_back > 0)
    text += concat("; ", format_grouped(timing.put_back), " times a text waited for the memory of others");
  return text;
}

}  // namespace

void declare_batch_options(OptionSet& options) {
  options
      .text(
          "prompts", "FILE.jsonl",
          "many prompts instead, a line each: \"text\", {\"prompt\": \"text\"} or {\"ids\": [1, 2]}; prints "
          "a line of JSON for each, as it ends")
      .integer("parallel", "N", {1, 1e6},
               "of --prompts: decode N texts at once; the next joins when one ends", 8)
      .integer("instances", "N", {1, 1024},
               "of --prompts: N decoders side by side, each with --parallel texts and on cores of its own; "
               "--threads is of each, --cache-memory of all");
}

void check_batch_options(const Arguments& arguments) {
  if (arguments.given("instances") && !arguments.given("prompts"))
    throw UsageError("--instances share out the prompts of a file: it needs --prompts FILE.jsonl");
}

ExitStatus generate_batch(GenerateJob& job) {
  const Prompts prompts = read_prompts(job.arguments, job.model);
  job.options.parallel = job.arguments.integer_of("parallel");
  runtime::GenerateCallback callback;
  if (!job.console.json()) callback = LinePrinter(job, prompts.size());
  std::optional<runtime::Session> session;
  std::optional<runtime::Instances> instances;
  Outcome outcome;
  if (const auto count = job.arguments.integer("instances")) {
    instances.emplace(job.model.program,
                      runtime::InstancesOptions{.count = static_cast<int>(*count), .session = job.session});
    outcome = by_instances(job, *instances, prompts, callback);
  } else {
    session.emplace(job.model.program, job.session);
    outcome = by_one(job, *session, prompts, callback);
  }
  runtime::Session& any = session ? *session : instances->session(0);
  const runtime::GenerateOutput& output = outcome.output;
  if (!job.console.json()) {
    job.console.note(summary(outcome));
    note_optional(job, any, output);
    return status_of(output);
  }
  ordered_json object = {{"results", ordered_json::array()}};
  for (size_t i = 0; i < prompts.size(); ++i)
    object["results"].push_back(result_json(i, output.results[i], job));
  object["timing"] = timing_json(outcome, job.options.parallel);
  if (outcome.prefixes) object["prefix_cache"] = prefix_json(*outcome.prefixes);
  add_optional_json(object, job, any, output);
  job.console.print_json(object);
  return status_of(output);
}

}  // namespace quern::cli
