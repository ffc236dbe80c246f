#include "cli/commands/bench_instances.h"

#include <array>
#include <nlohmann/json.hpp>

#include "cli/commands/bench_contest.h"
#include "cli/format.h"
#include "cli/table.h"
#include "runtime/cpu/isa.h"
#include "runtime/generate/instances.h"

namespace quern::cli {
namespace {

std::string way_name(int64_t instances, int threads, int64_t texts) {
  return concat(instances, instances == 1 ? " instance, " : " instances, ", threads,
                threads == 1 ? " thread, " : " threads, ", texts,
                texts == 1 ? " text at once" : " texts at once");
}

nlohmann::ordered_json to_json(const Way& way, int64_t instances, int threads, int64_t parallel) {
  nlohmann::ordered_json object = {{"instances", instances}, {"threads", threads}, {"parallel", parallel}};
  object.update(way.to_json());
  return object;
}

}  // namespace

void declare_bench_instances_options(OptionSet& options) {
  options.section("Instances: throughput on many prompts from a text")
      .integer(
          "instances", "N", {1, 1024},
          "N decoders, each pinned to cores of its own, against one with all threads that decodes as many "
          "texts together; -t is of all together")
      .integer("parallel", "N", {1, 1e6}, "texts that each instance decodes at once", 4);
}

ExitStatus bench_instances(const Arguments& arguments, const LoadedModel& model, Console& console) {
  for (const char* other : {"speculate", "exit", "profile", "machine"}) {
    if (arguments.given(other)) throw UsageError(concat("--instances and --", other, " are measured apart"));
  }
  const BenchPrompts prompts = bench_prompts(arguments, model, "--instances");
  const int64_t count = *arguments.integer("instances"), parallel = arguments.integer_of("parallel");
  runtime::SessionOptions settings = session_options(arguments);
  runtime::Session session(model.program, settings);
  if (session.threads() < count) {
    throw UsageError(
        concat("--instances ", count, " of ", session.threads(), " threads: each needs one of its own"));
  }
  settings.threads = settings.threads / static_cast<int>(count);  // 0: one for each core
  runtime::Instances instances(model.program, {.count = static_cast<int>(count), .session = settings});
  runtime::GenerateOptions options;
  options.max_new_tokens = bench_tokens(arguments);
  Way one, many;
  one.decode = [&](auto texts) {
    runtime::GenerateOptions own = options;
    own.parallel = parallel * count;
    return runtime::generate(session, texts, own);
  };
  many.decode = [&](auto texts) {
    runtime::GenerateOptions own = options;
    own.parallel = parallel;
    return instances.generate(texts, own);
  };
  const std::array<Way*, 2> ways = {&one, &many};
  hold_contest(ways, prompts, {.repeat = arguments.integer_of("repeat"), .together = true}, console);
  const bool identical = one.texts == many.texts;
  if (!console.json()) {
    Table table({{""}, {"tokens", Align::Right}, {"tokens/s", Align::Right}, {""}});
    table.add_row({way_name(1, session.threads(), parallel * count), format_grouped(one.tokens),
                   format_number(one.rate(), 4), ""});
    table.add_row({way_name(count, instances.threads(), parallel * count), format_grouped(many.tokens),
                   format_number(many.rate(), 4),
                   concat(format_fixed(many.rate() / one.rate(), 2), " times that of one")});
    console.print(table.to_string() + (identical ? "the tokens are the same\n" : "THE TOKENS DIFFER\n"));
    return ExitStatus::Ok;
  }
  console.print_json({{"model", model.file.path},
                      {"isa", cpu::to_string(cpu::active_isa())},
                      {"prompts", prompts.size()},
                      {"prompt_tokens", prompts.front().size()},
                      {"one", to_json(one, 1, session.threads(), parallel * count)},
                      {"instances", to_json(many, count, instances.threads(), parallel)},
                      {"ratio", many.rate() / one.rate()},
                      {"identical", identical}});
  return ExitStatus::Ok;
}

}  // namespace quern::cli
