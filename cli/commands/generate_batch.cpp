#include "cli/commands/generate_batch.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/files.h"
#include "cli/format.h"
#include "cli/prefix_cache.h"
#include "cli/speculation.h"
#include "formats/tokenizer/utf8.h"

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
  for (const char* other : {"prompt", "prompt-file", "ids", "messages", "chat"}) {
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

ordered_json result_json(size_t prompt, const runtime::GenerateResult& result, const LoadedModel& model) {
  ordered_json object = {{"prompt", prompt}, {"ids", result.ids}};
  object["text"] = model.tokenizer ? ordered_json(tokenizer::to_valid_utf8(result.text)) : ordered_json();
  object["finish_reason"] = runtime::to_string(result.finish);
  object["stop"] = result.stop.empty() ? ordered_json() : ordered_json(result.stop);
  return object;
}

double throughput(const runtime::GenerateTiming& timing) {
  return timing.seconds > 0 ? static_cast<double>(timing.generated_tokens) / timing.seconds : 0;
}

ordered_json timing_json(const runtime::GenerateTiming& timing, int64_t parallel) {
  return {{"parallel", parallel},
          {"prompt_tokens", timing.prompt_tokens},
          {"cached_tokens", timing.cached_tokens},
          {"generated_tokens", timing.generated_tokens},
          {"seconds", timing.seconds},
          {"first_token_seconds", timing.first_token_seconds},
          {"tokens_per_second", throughput(timing)}};
}

}  // namespace

void declare_batch_options(OptionSet& options) {
  options
      .text(
          "prompts", "FILE.jsonl",
          "many prompts instead, a line each: \"text\", {\"prompt\": \"text\"} or {\"ids\": [1, 2]}; prints "
          "a line of JSON for each, as it ends")
      .integer("parallel", "N", {1, 1e6},
               "of --prompts: decode N texts at once; the next joins when one ends", 8);
}

ExitStatus generate_batch(const Arguments& arguments, Console& console, const LoadedModel& model,
                          runtime::Session& session, runtime::GenerateOptions options) {
  const Prompts prompts = read_prompts(arguments, model);
  options.parallel = arguments.integer_of("parallel");
  // Gathered here, since a text is printed before all of them are there.
  std::vector<runtime::GenerateResult> so_far(prompts.size());
  runtime::GenerateCallback callback;
  if (!console.json()) {
    callback = [&](const runtime::GenerateEvent& event) {
      runtime::GenerateResult& result = so_far[event.prompt];
      result.ids.insert(result.ids.end(), event.ids.begin(), event.ids.end());
      result.text += event.text;
      if (!event.finished) return;
      ordered_json line = {{"prompt", event.prompt}, {"ids", result.ids}};
      line["text"] = model.tokenizer ? ordered_json(tokenizer::to_valid_utf8(result.text)) : ordered_json();
      console.print(line.dump() + "\n");
      console.flush();
    };
  }
  const runtime::GenerateOutput output = runtime::generate(session, prompts, options, callback);
  const runtime::GenerateTiming& timing = output.timing;
  if (console.json()) {
    ordered_json object = {{"results", ordered_json::array()}};
    for (size_t i = 0; i < prompts.size(); ++i)
      object["results"].push_back(result_json(i, output.results[i], model));
    object["timing"] = timing_json(timing, options.parallel);
    if (options.prefix_cache != nullptr)
      object["prefix_cache"] = prefix_json(options.prefix_cache->statistics());
    if (output.speculation) object["speculation"] = speculation_json(*output.speculation);
    console.print_json(object);
  } else {
    console.note(concat(prompts.size(), " prompts of ", format_grouped(timing.prompt_tokens), " tokens, ",
                        format_grouped(timing.cached_tokens), " of them computed before; generated ",
                        format_grouped(timing.generated_tokens), " tokens in ",
                        format_seconds(timing.seconds), ", ",
                        format_grouped(std::llround(throughput(timing))), " tokens/s"));
    if (output.speculation) console.note(speculation_text(*output.speculation));
  }
  const auto cancelled = [](const auto& r) { return r.finish == runtime::FinishReason::Cancelled; };
  return std::any_of(output.results.begin(), output.results.end(), cancelled) ? ExitStatus::Interrupted
                                                                              : ExitStatus::Ok;
}

}  // namespace quern::cli
