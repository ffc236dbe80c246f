#include "cli/commands/bench_speculation.h"

#include <array>
#include <nlohmann/json.hpp>

#include "cli/commands/bench_contest.h"
#include "cli/format.h"
#include "cli/speculation.h"
#include "cli/table.h"
#include "runtime/cpu/isa.h"

namespace quern::cli {
namespace {

using nlohmann::ordered_json;

// Plain decoding and another way, on one session.
class Pair {
 public:
  Pair(const Arguments& arguments, const LoadedModel& model, const char* what)
      : prompts(bench_prompts(arguments, model, what)), session(model.program, session_options(arguments)) {
    options_.max_new_tokens = bench_tokens(arguments);
    plain.decode = [this](auto texts) { return decode(texts, {}); };
  }
  runtime::GenerateOutput decode(std::span<const std::vector<int64_t>> texts, StrategyFactory strategy) {
    runtime::GenerateOptions options = options_;
    options.strategy = std::move(strategy);
    return runtime::generate(session, texts, options);
  }
  void run(const Arguments& arguments, Console& console) {
    const std::array<Way*, 2> ways = {&plain, &other};
    hold_contest(ways, prompts, {.repeat = arguments.integer_of("repeat")}, console);
  }
  bool identical() const { return plain.texts == other.texts; }
  double speedup() const { return other.rate() / plain.rate(); }

  ordered_json facts(const LoadedModel& model) const {
    return {{"model", model.file.path},
            {"threads", session.threads()},
            {"isa", cpu::to_string(cpu::active_isa())},
            {"prompts", prompts.size()},
            {"prompt_tokens", prompts.front().size()}};
  }
  // `note`: of the other way, behind its share of the plain rate.
  std::string table(const std::string& name, const std::string& note) const {
    Table table({{""}, {"tokens", Align::Right}, {"tokens/s", Align::Right}, {""}});
    table.add_row({"plain", format_grouped(plain.tokens), format_number(plain.rate(), 4), ""});
    table.add_row({name, format_grouped(other.tokens), format_number(other.rate(), 4),
                   concat(format_fixed(speedup(), 2), " times plain; ", note)});
    return table.to_string();
  }

  BenchPrompts prompts;
  runtime::Session session;
  Way plain, other;

 private:
  runtime::GenerateOptions options_;
};

}  // namespace

void declare_bench_speculation_options(OptionSet& options) {
  options.section("Speculation and early exits: decoding prompts from a text, with them and without");
  declare_speculation_options(options);
  declare_exit_options(options);
  declare_contest_options(options);
  options.choice("against", {"plain"}, "what it is compared with, in turns in the same run", "plain");
}

ExitStatus bench_speculation(const Arguments& arguments, const LoadedModel& model, Console& console) {
  const StrategyFactory strategy = speculation(arguments, model, console);
  Pair pair(arguments, model, "--speculate");
  pair.other.decode = [&](auto texts) { return pair.decode(texts, strategy); };
  pair.run(arguments, console);
  const std::string kind = arguments.text_of("speculate");
  const runtime::SpeculationStatistics& s = pair.other.statistics;
  if (!console.json()) {
    const std::string note = concat(format_fixed(s.tokens_per_round(), 2), " tokens per run, ",
                                    format_percent(s.acceptance_rate(), 0), " of guesses accepted, ",
                                    format_percent(s.draft_share(), 0), " of the time guessing");
    console.print(pair.table(kind, note) +
                  (pair.identical() ? "the tokens are the same\n" : "THE TOKENS DIFFER\n"));
    return ExitStatus::Ok;
  }
  ordered_json object = pair.facts(model);
  object["speculate"] = kind;
  object["plain"] = pair.plain.to_json();
  object["speculative"] = pair.other.to_json();
  ordered_json statistics = speculation_json(s);
  statistics.erase("estimated_speedup");
  object["speculative"].update(statistics);
  object["speedup"] = pair.speedup();
  object["identical"] = pair.identical();
  console.print_json(object);
  return ExitStatus::Ok;
}

ExitStatus bench_exits(const Arguments& arguments, const LoadedModel& model, const runtime::ExitRule& rule,
                       Console& console) {
  Pair pair(arguments, model, "--exit");
  runtime::ExitStatistics all;
  pair.other.decode = [&](auto texts) {
    const auto statistics = std::make_shared<runtime::ExitStatistics>();
    runtime::GenerateOutput output = pair.decode(texts, with_exits(rule, model, statistics));
    all += *statistics;
    return output;
  };
  pair.run(arguments, console);
  const double same = agreement(pair.plain.texts, pair.other.texts);
  if (!console.json()) {
    const std::string note =
        concat(format_fixed(all.average_layers(), 2), " of ", all.layers, " layers on average");
    console.print(pair.table(to_text(rule), note) + exit_text(all) + "\n" +
                  (pair.identical() ? "the tokens are the same\n"
                                    : concat(format_percent(same, 0), " of the tokens are the same\n")));
    return ExitStatus::Ok;
  }
  ordered_json object = pair.facts(model);
  object["exit"] = to_text(rule);
  object["plain"] = pair.plain.to_json();
  object["exiting"] = pair.other.to_json();
  object["exiting"].update(exit_json(all));
  object["speedup"] = pair.speedup();
  object["identical"] = pair.identical();
  object["agreement"] = same;
  console.print_json(object);
  return ExitStatus::Ok;
}

}  // namespace quern::cli
