#include "cli/commands/bench_speculation.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/files.h"
#include "cli/format.h"
#include "cli/progress.h"
#include "cli/speculation.h"
#include "cli/table.h"
#include "runtime/cpu/isa.h"

namespace quern::cli {
namespace {

using Prompts = std::vector<std::vector<int64_t>>;

// Pieces of the text, spread over all of it.
Prompts prompts_of(const Arguments& arguments, const LoadedModel& model) {
  const std::optional<std::string> file = arguments.text("text");
  if (!file) throw UsageError("--speculate is measured on a text: give --text FILE");
  if (!model.tokenizer) throw UsageError("--text needs a tokenizer; the model has none");
  const std::vector<int64_t> ids = model.tokenizer->encode(read_input(*file));
  const auto length = static_cast<size_t>(std::max<int64_t>(1, arguments.integer_of("prompt")));
  if (ids.size() < length) {
    throw_error(ErrorCode::BadData, "'", *file, "' has ", ids.size(), " tokens, fewer than a prompt of ",
                length, " (-p)");
  }
  const auto count = std::min(static_cast<size_t>(arguments.integer_of("prompts")), ids.size() / length);
  Prompts prompts;
  for (size_t i = 0; i < count; ++i) {
    const size_t first = count > 1 ? (ids.size() - length) * i / (count - 1) : 0;
    prompts.emplace_back(ids.begin() + static_cast<int64_t>(first),
                         ids.begin() + static_cast<int64_t>(first + length));
  }
  return prompts;
}

// One way of decoding, measured over all prompts.
struct Way {
  StrategyFactory strategy;
  double seconds = 0;  // of decoding, per repetition: the median
  int64_t tokens = 0;
  std::vector<double> runs;
  std::vector<std::vector<int64_t>> texts;
  runtime::SpeculationStatistics statistics;

  double rate() const { return static_cast<double>(tokens) / seconds; }
  void finish() {
    std::sort(runs.begin(), runs.end());
    seconds = runs[runs.size() / 2];
  }
};

void add(runtime::SpeculationStatistics& sum, const runtime::SpeculationStatistics& more) {
  sum.rounds += more.rounds;
  sum.speculative_rounds += more.speculative_rounds;
  sum.tokens += more.tokens;
  sum.proposed += more.proposed;
  sum.verified += more.verified;
  sum.evaluated += more.evaluated;
  sum.accepted += more.accepted;
  sum.draft_seconds += more.draft_seconds;
  sum.seconds += more.seconds;
}

class Contest {
 public:
  Contest(runtime::Session& session, const Prompts& prompts, const runtime::GenerateOptions& options)
      : session_(session), prompts_(prompts), options_(options) {}

  // Both ways take turns prompt by prompt, so that whatever else the machine does meets them alike.
  void run(Way& plain, Way& speculative, int64_t repeat, Console& console) {
    Progress progress(console, "measuring", repeat + 1, "runs");
    for (int64_t round = 0; round <= repeat; ++round) {
      progress.update(round);
      double seconds[2] = {0, 0};
      int64_t tokens[2] = {0, 0};
      for (size_t i = 0; i < prompts_.size(); ++i) {
        one(plain, i, round, seconds[0], tokens[0]);
        one(speculative, i, round, seconds[1], tokens[1]);
      }
      if (round == 0) continue;  // touches the memory that the others find there
      plain.runs.push_back(seconds[0]);
      speculative.runs.push_back(seconds[1]);
      plain.tokens = tokens[0];
      speculative.tokens = tokens[1];
    }
    plain.finish();
    speculative.finish();
  }

 private:
  void one(Way& way, size_t prompt, int64_t round, double& seconds, int64_t& tokens) {
    runtime::GenerateOptions options = options_;
    options.strategy = way.strategy;
    const runtime::GenerateOutput output =
        runtime::generate(session_, std::span(prompts_).subspan(prompt, 1), options);
    seconds += output.timing.decode_seconds;
    tokens += output.timing.generated_tokens - 1;
    if (round == 0) {
      way.texts.push_back(output.results.front().ids);
    } else if (output.speculation) {
      add(way.statistics, *output.speculation);
    }
  }

  runtime::Session& session_;
  const Prompts& prompts_;
  const runtime::GenerateOptions& options_;
};

std::string to_text(const Way& plain, const Way& speculative, const std::string& kind, bool identical) {
  Table table({{""}, {"tokens", Align::Right}, {"tokens/s", Align::Right}, {""}});
  const runtime::SpeculationStatistics& s = speculative.statistics;
  table.add_row({"plain", format_grouped(plain.tokens), format_number(plain.rate(), 4), ""});
  table.add_row({kind, format_grouped(speculative.tokens), format_number(speculative.rate(), 4),
                 concat(format_fixed(speculative.rate() / plain.rate(), 2), " times plain; ",
                        format_fixed(s.tokens_per_round(), 2), " tokens per run, ",
                        format_percent(s.acceptance_rate(), 0), " of guesses accepted, ",
                        format_percent(s.draft_share(), 0), " of the time guessing")});
  return table.to_string() + (identical ? "the tokens are the same\n" : "THE TOKENS DIFFER\n");
}

}  // namespace

void declare_bench_speculation_options(OptionSet& options) {
  options.section("Speculation: decoding prompts from a text, with it and without");
  declare_speculation_options(options);
  options.text("text", "FILE", "the prompts are pieces of this text, of -p tokens")
      .integer("prompts", "N", {1, 1e6}, "so many of them, spread over the text", 4)
      .choice("against", {"plain"}, "what it is compared with, in turns in the same run", "plain");
}

ExitStatus bench_speculation(const Arguments& arguments, const LoadedModel& model, Console& console) {
  const Prompts prompts = prompts_of(arguments, model);
  Way plain, speculative;
  speculative.strategy = speculation(arguments, model, console);
  runtime::Session session(model.program, session_options(arguments));
  runtime::GenerateOptions options;
  options.max_new_tokens = arguments.integer_of("generate");
  if (options.max_new_tokens < 2) throw UsageError("-n must be 2 or more: the first token is not decoded");
  Contest(session, prompts, options).run(plain, speculative, arguments.integer_of("repeat"), console);
  const bool identical = plain.texts == speculative.texts;
  const std::string kind = arguments.text_of("speculate");
  if (!console.json()) {
    console.print(to_text(plain, speculative, kind, identical));
    return ExitStatus::Ok;
  }
  const auto way = [](const Way& w) {
    return nlohmann::ordered_json{{"tokens", w.tokens},
                                  {"seconds", w.seconds},
                                  {"tokens_per_second", w.rate()},
                                  {"runs_seconds", w.runs}};
  };
  nlohmann::ordered_json object = {{"model", model.file.path},
                                   {"threads", session.threads()},
                                   {"isa", cpu::to_string(cpu::active_isa())},
                                   {"prompts", prompts.size()},
                                   {"prompt_tokens", prompts.front().size()},
                                   {"speculate", kind},
                                   {"plain", way(plain)},
                                   {"speculative", way(speculative)}};
  nlohmann::ordered_json statistics = speculation_json(speculative.statistics);
  statistics.erase("estimated_speedup");
  object["speculative"].update(statistics);
  object["speedup"] = speculative.rate() / plain.rate();
  object["identical"] = identical;
  console.print_json(object);
  return ExitStatus::Ok;
}

}  // namespace quern::cli
