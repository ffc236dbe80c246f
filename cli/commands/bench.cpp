// quern bench: how fast a model is here, and how fast it could be.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/commands/bench_instances.h"
#include "cli/commands/bench_speculation.h"
#include "cli/commands/commands.h"
#include "cli/format.h"
#include "cli/loaded_model.h"
#include "cli/progress.h"
#include "cli/self_speculation.h"
#include "cli/table.h"
#include "runtime/cpu/isa.h"
#include "runtime/cpu/machine.h"
#include "runtime/cpu/thread_team.h"
#include "runtime/generate/random.h"

namespace quern::cli {
namespace {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

void declare(OptionSet& options) {
  options
      .positional({.name = "MODEL",
                   .help = "a .quern artifact or ONNX decoder; with --machine it may be left out",
                   .required = false})
      .integer("prompt,p", "N", {0, 1e6}, "tokens of the prompt, computed together (prefill)", 512)
      .integer("generate,n", "N", {0, 1e6}, "tokens computed one after the other behind it (decode)", 128)
      .integer("repeat,r", "N", {1, 1000}, "measurements of each; the median is what is said", 3)
      .flag("machine", "measure the machine's memory and arithmetic too, and give shares of them")
      .flag("profile", "say where the time went, step by step")
      .text("tokenizer", "FILE", "not needed; accepted as by other commands");
  declare_session_options(options);
  declare_bench_speculation_options(options);
  declare_bench_instances_options(options);
  options.example("quern bench model.quern -p 512 -n 128 -t 2", "prefill and decode rates")
      .example("quern bench model.quern --machine --json",
               "the same as shares of what the machine could do, for scripts")
      .example("quern bench model.quern --speculate ngram --text book.txt --against plain",
               "what speculation gains on a text, and that its tokens are those of plain decoding")
      .example("quern bench model.quern --exit margin:0.8 --text book.txt",
               "what early exits gain, how deep tokens go, and how many of them change")
      .example("quern bench model.quern --instances 2 --parallel 4 --text book.txt --prompts 64 -p 100",
               "throughput of two decoders on a core each against one that decodes eight texts together")
      .example("quern bench --machine", "memory bandwidth and arithmetic of the machine alone");
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Seconds of each run of one kind.
struct Timing {
  int64_t tokens = 0;
  std::vector<double> runs;

  double median() const {
    std::vector<double> sorted = runs;
    std::sort(sorted.begin(), sorted.end());
    const size_t middle = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  }
  double rate() const { return static_cast<double>(tokens) / median(); }
  double fastest() const { return static_cast<double>(tokens) / *std::min_element(runs.begin(), runs.end()); }
  double slowest() const { return static_cast<double>(tokens) / *std::max_element(runs.begin(), runs.end()); }
  ordered_json to_json() const {
    return {{"tokens", tokens},
            {"seconds", median()},
            {"tokens_per_second", rate()},
            {"tokens_per_second_fastest", fastest()},
            {"tokens_per_second_slowest", slowest()},
            {"runs_seconds", runs}};
  }
};

struct Measurement {
  Timing prefill;
  Timing decode;
  int64_t cache_bytes = 0;
  std::vector<runtime::StepProfile> prefill_profile;
  std::vector<runtime::StepProfile> decode_profile;
};

std::vector<int64_t> random_ids(int64_t count, int64_t vocabulary) {
  runtime::RandomStream random(1);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int64_t>(random.next_uniform() * static_cast<double>(vocabulary)));
  }
  return ids;
}

class Bench {
 public:
  Bench(runtime::Session& session, int64_t prompt, int64_t generate, bool profile)
      : session_(session),
        ids_(random_ids(prompt + generate, session.program().traits().vocabulary)),
        prompt_(static_cast<size_t>(prompt)),
        profile_(profile) {
    result_.prefill.tokens = prompt;
    result_.decode.tokens = generate;
  }

  void run_once(bool counts) {
    runtime::Sequence sequence = session_.new_sequence();
    const std::span<const int64_t> ids(ids_);
    if (prompt_ > 0) {
      session_.set_profiling(profile_);
      const Clock::time_point start = Clock::now();
      session_.run(sequence, ids.first(prompt_));
      if (counts) result_.prefill.runs.push_back(seconds_since(start));
      if (profile_) result_.prefill_profile = session_.profile();
    }
    if (ids.size() > prompt_) {
      session_.set_profiling(profile_);
      const Clock::time_point start = Clock::now();
      for (size_t i = prompt_; i < ids.size(); ++i) session_.run(sequence, ids.subspan(i, 1));
      if (counts) result_.decode.runs.push_back(seconds_since(start));
      if (profile_) result_.decode_profile = session_.profile();
    }
    session_.set_profiling(false);
    result_.cache_bytes = session_.cache_bytes();
  }
  const Measurement& result() const { return result_; }

 private:
  runtime::Session& session_;
  std::vector<int64_t> ids_;
  size_t prompt_;
  bool profile_;
  Measurement result_;
};

Measurement measure(runtime::Session& session, const Arguments& arguments, Console& console) {
  const int64_t prompt = arguments.integer_of("prompt");
  const int64_t generate = arguments.integer_of("generate");
  if (prompt + generate == 0) throw UsageError("-p 0 and -n 0 leave nothing to measure");
  const int64_t repeat = arguments.integer_of("repeat");
  Bench bench(session, prompt, generate, arguments.flag("profile"));
  Progress progress(console, "measuring", repeat + 1, "runs");
  bench.run_once(false);  // the first touches memory that the others find there
  for (int64_t i = 0; i < repeat; ++i) {
    progress.update(i + 1);
    bench.run_once(true);
  }
  return bench.result();
}

ordered_json machine_json(const cpu::MachineRates& rates) {
  const auto or_null = [](double rate) { return rate > 0 ? ordered_json(rate) : ordered_json(); };
  return {{"isa", cpu::to_string(rates.isa)},     {"threads", rates.threads},
          {"read_gbps", rates.read_gbps_all},     {"read_gbps_one_thread", rates.read_gbps_one},
          {"fp32_gflops", rates.fp32_all},        {"bf16_gflops", or_null(rates.bf16_all)},
          {"int8_gops", or_null(rates.int8_all)}, {"int4_gops", or_null(rates.int4_all)},
          {"fork_join_us", rates.fork_join_us}};
}

std::string machine_text(const cpu::MachineRates& rates) {
  Table table({{"machine"},
               {"1 thread", Align::Right},
               {std::to_string(rates.threads) + " threads", Align::Right},
               {""}});
  const auto add = [&](const char* what, double one, double all, const char* unit) {
    if (all > 0) table.add_row({what, format_fixed(one, 1), format_fixed(all, 1), unit});
  };
  add("reading memory", rates.read_gbps_one, rates.read_gbps_all, "GB/s");
  add("fp32", rates.fp32_one, rates.fp32_all, "GFLOP/s");
  add("bf16", rates.bf16_one, rates.bf16_all, "GFLOP/s");
  add("int8", rates.int8_one, rates.int8_all, "GOP/s");
  add("int4 by int8", rates.int4_one, rates.int4_all, "GOP/s");
  return table.to_string() + "instructions: " + std::string(cpu::to_string(rates.isa)) +
         "; fork and join: " + format_fixed(rates.fork_join_us, 1) + " us\n";
}

ordered_json profile_json(const std::vector<runtime::StepProfile>& profile) {
  ordered_json list = ordered_json::array();
  for (const runtime::StepProfile& step : profile) {
    list.push_back({{"name", step.name},
                    {"kind", step.kind},
                    {"calls", step.calls},
                    {"rows", step.rows},
                    {"seconds", static_cast<double>(step.nanoseconds) * 1e-9},
                    {"bytes", step.bytes}});
  }
  return list;
}

// By kind of step, the slowest first.
std::string profile_text(const char* title, const std::vector<runtime::StepProfile>& profile) {
  if (profile.empty()) return "";
  std::map<std::string, runtime::StepProfile> kinds;
  double total = 0;
  for (const runtime::StepProfile& step : profile) {
    runtime::StepProfile& sum = kinds[step.kind];
    sum.calls += step.calls;
    sum.nanoseconds += step.nanoseconds;
    sum.bytes += step.bytes;
    total += static_cast<double>(step.nanoseconds);
  }
  std::vector<std::pair<std::string, runtime::StepProfile>> sorted(kinds.begin(), kinds.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.nanoseconds > b.second.nanoseconds; });
  Table table({{title},
               {"share", Align::Right},
               {"time", Align::Right},
               {"calls", Align::Right},
               {"GB/s", Align::Right}});
  for (const auto& [kind, sum] : sorted) {
    const auto nanoseconds = static_cast<double>(std::max<int64_t>(1, sum.nanoseconds));
    table.add_row({kind, format_percent(nanoseconds / std::max(1.0, total), 1),
                   format_seconds(nanoseconds * 1e-9), format_grouped(sum.calls),
                   sum.bytes > 0 ? format_fixed(static_cast<double>(sum.bytes) / nanoseconds, 1) : ""});
  }
  return "\n" + table.to_string();
}

// GB/s of weights that decoding reads.
double decode_gbps(const Measurement& result, const runtime::DecoderTraits& traits) {
  return static_cast<double>(traits.streamed_bytes) * result.decode.rate() * 1e-9;
}

std::string result_text(const Measurement& result, const runtime::DecoderTraits& traits,
                        const std::optional<cpu::MachineRates>& machine) {
  Table table({{""},
               {"tokens", Align::Right},
               {"tokens/s", Align::Right},
               {"slowest", Align::Right},
               {"fastest", Align::Right},
               {""}});
  const auto add = [&](const char* what, const Timing& timing, const std::string& note) {
    const auto rate = [](double tokens_per_second) { return format_number(tokens_per_second, 4); };
    table.add_row({what, std::to_string(timing.tokens), rate(timing.rate()), rate(timing.slowest()),
                   rate(timing.fastest()), note});
  };
  if (!result.prefill.runs.empty()) add("prefill", result.prefill, "");
  if (!result.decode.runs.empty()) {
    const double gbps = decode_gbps(result, traits);
    std::string note = format_fixed(gbps, 1) + " GB/s of weights";
    if (machine)
      note += ", " + format_percent(gbps / machine->read_gbps_all, 0) + " of what the memory gives";
    add("decode", result.decode, note);
  }
  return table.to_string();
}

ordered_json result_json(const LoadedModel& model, const runtime::Session& session,
                         const Measurement& result) {
  const runtime::DecoderTraits& traits = model.program->traits();
  ordered_json object = {{"model", model.file.path},
                         {"threads", session.threads()},
                         {"isa", cpu::to_string(cpu::active_isa())},
                         {"load_seconds", model.seconds},
                         {"weight_bytes", traits.weight_bytes},
                         {"streamed_bytes_per_token", traits.streamed_bytes},
                         {"cache_bytes", result.cache_bytes}};
  if (!result.prefill.runs.empty()) object["prefill"] = result.prefill.to_json();
  if (!result.decode.runs.empty()) {
    object["decode"] = result.decode.to_json();
    object["decode"]["gbps"] = decode_gbps(result, traits);
  }
  return object;
}

std::optional<cpu::MachineRates> measure_machine(const Arguments& arguments, Console& console) {
  if (!arguments.flag("machine")) return {};
  console.note("measuring the machine ...");
  cpu::ThreadTeam team(static_cast<int>(arguments.integer("threads").value_or(0)));
  return cpu::measure_machine(team);
}

ExitStatus run(const Arguments& arguments, Console& console) {
  const std::optional<std::string> path = arguments.text("MODEL");
  if (!path && !arguments.flag("machine"))
    throw UsageError("missing MODEL (or --machine, to measure the machine alone)");
  const std::optional<cpu::MachineRates> machine = measure_machine(arguments, console);
  if (!path) {
    console.json() ? console.print_json({{"machine", machine_json(*machine)}})
                   : console.print(machine_text(*machine));
    return ExitStatus::Ok;
  }
  LoadedModel model = load_decoder(*path, arguments.text("tokenizer"), console, "quern bench");
  prepare_self_speculation(arguments, model);
  if (arguments.given("instances")) return bench_instances(arguments, model, console);
  if (const std::optional<runtime::ExitRule> exits = exit_rule(arguments)) {
    if (arguments.given("speculate")) throw UsageError("--exit and --speculate are measured apart");
    prepare_exits(*exits, model);
    return bench_exits(arguments, model, *exits, console);
  }
  if (arguments.given("speculate")) return bench_speculation(arguments, model, console);
  runtime::Session session(model.program, session_options(arguments));
  const Measurement result = measure(session, arguments, console);
  const runtime::DecoderTraits& traits = model.program->traits();
  if (console.json()) {
    ordered_json object = result_json(model, session, result);
    if (machine) {
      object["machine"] = machine_json(*machine);
      if (!result.decode.runs.empty())
        object["decode"]["share_of_read_gbps"] = decode_gbps(result, traits) / machine->read_gbps_all;
    }
    if (arguments.flag("profile")) {
      object["profile"] = {{"prefill", profile_json(result.prefill_profile)},
                           {"decode", profile_json(result.decode_profile)}};
    }
    console.print_json(object);
    return ExitStatus::Ok;
  }
  console.print(one_line(model.file.path.string()) + ": " +
                format_bytes(static_cast<double>(traits.weight_bytes)) + " of weights, " +
                std::to_string(session.threads()) + (session.threads() == 1 ? " thread, " : " threads, ") +
                std::string(cpu::to_string(cpu::active_isa())) + "\n\n");
  if (machine) console.print(machine_text(*machine) + "\n");
  console.print(result_text(result, traits, machine));
  console.print(profile_text("prefill", result.prefill_profile) +
                profile_text("decode", result.decode_profile));
  return ExitStatus::Ok;
}

}  // namespace

Command bench_command() {
  return {.name = "bench",
          .summary = "measure prefill and decoding, and the machine",
          .group = "Measure",
          .details = "",
          .declare = declare,
          .run = run};
}

}  // namespace quern::cli
