#include "cli/commands/bench_contest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/files.h"
#include "cli/progress.h"
#include "ir/error.h"

namespace quern::cli {
namespace {

// Adds what the way took for these prompts to `seconds` and `tokens`.
void take_turn(Way& way, std::span<const std::vector<int64_t>> prompts, const ContestOptions& options,
               bool counts, double& seconds, int64_t& tokens) {
  const runtime::GenerateOutput output = way.decode(prompts);
  const auto texts = static_cast<int64_t>(output.results.size());
  seconds += options.together ? output.timing.seconds : output.timing.decode_seconds;
  // The first token of each text is not decoded.
  tokens += output.timing.generated_tokens - (options.together ? 0 : texts);
  if (!counts) {
    for (const runtime::GenerateResult& result : output.results) way.texts.push_back(result.ids);
  } else if (output.speculation) {
    way.statistics += *output.speculation;
  }
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

void declare_contest_options(OptionSet& options) {
  options.text("text", "FILE", "the prompts are pieces of this text, of -p tokens")
      .integer("prompts", "N", {1, 1e6}, "so many of them, spread over the text", 4);
}

BenchPrompts bench_prompts(const Arguments& arguments, const LoadedModel& model, const char* what) {
  const std::optional<std::string> file = arguments.text("text");
  if (!file) throw UsageError(concat(what, " is measured on a text: give --text FILE"));
  if (!model.tokenizer) throw UsageError("--text needs a tokenizer; the model has none");
  const std::vector<int64_t> ids = model.tokenizer->encode(read_input(*file));
  const auto length = static_cast<size_t>(std::max<int64_t>(1, arguments.integer_of("prompt")));
  if (ids.size() < length) {
    throw_error(ErrorCode::BadData, "'", *file, "' has ", ids.size(), " tokens, fewer than a prompt of ",
                length, " (-p)");
  }
  const auto count = std::min(static_cast<size_t>(arguments.integer_of("prompts")), ids.size() / length);
  BenchPrompts prompts;
  for (size_t i = 0; i < count; ++i) {
    const size_t first = count > 1 ? (ids.size() - length) * i / (count - 1) : 0;
    prompts.emplace_back(ids.begin() + static_cast<int64_t>(first),
                         ids.begin() + static_cast<int64_t>(first + length));
  }
  return prompts;
}

nlohmann::ordered_json Way::to_json() const {
  return {{"tokens", tokens}, {"seconds", seconds}, {"tokens_per_second", rate()}, {"runs_seconds", runs}};
}

void hold_contest(std::span<Way* const> ways, const BenchPrompts& prompts, const ContestOptions& options,
                  Console& console) {
  Progress progress(console, "measuring", options.repeat + 1, "runs");
  const size_t turn = options.together ? prompts.size() : 1;
  for (int64_t round = 0; round <= options.repeat; ++round) {
    progress.update(round);
    std::vector<double> seconds(ways.size());
    std::vector<int64_t> tokens(ways.size());
    for (size_t first = 0; first < prompts.size(); first += turn) {
      for (size_t w = 0; w < ways.size(); ++w)
        take_turn(*ways[w], std::span(prompts).subspan(first, turn), options, round > 0, seconds[w],
                  tokens[w]);
    }
    if (round == 0) continue;  // touches the memory that the others find there
    for (size_t w = 0; w < ways.size(); ++w) {
      ways[w]->runs.push_back(seconds[w]);
      ways[w]->tokens = tokens[w];
    }
  }
  for (Way* way : ways) way->seconds = median(way->runs);
}

double agreement(const BenchPrompts& a, const BenchPrompts& b) {
  int64_t same = 0, all = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    all += static_cast<int64_t>(std::max(a[i].size(), b[i].size()));
    for (size_t t = 0; t < std::min(a[i].size(), b[i].size()); ++t) same += a[i][t] == b[i][t] ? 1 : 0;
  }
  return all > 0 ? static_cast<double>(same) / static_cast<double>(all) : 1;
}

int64_t bench_tokens(const Arguments& arguments) {
  const int64_t tokens = arguments.integer_of("generate");
  if (tokens < 2) throw UsageError("-n must be 2 or more: the first token is not decoded");
  return tokens;
}

}  // namespace quern::cli
