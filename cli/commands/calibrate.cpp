// quern calibrate: what a model's activations are like on samples, as a table.
#include <chrono>
#include <nlohmann/json.hpp>

#include "calibrate/table.h"
#include "cli/calibration_options.h"
#include "cli/commands/commands.h"
#include "cli/files.h"
#include "cli/format.h"
#include "cli/interrupt.h"
#include "cli/loaded_model.h"
#include "cli/progress.h"
#include "formats/file/atomic_file.h"

namespace quern::cli {
namespace {

using calibrate::CalibrationTable;
using Clock = std::chrono::steady_clock;

void declare(OptionSet& options) {
  options.positional({.name = "MODEL", .help = "the model to calibrate; or the word merge, to join tables"})
      .positional({.name = "TABLE",
                   .help = "after merge: the tables of all shards",
                   .required = false,
                   .repeated = true})
      .text("output,o", "FILE.json", "where to write the table (required)")
      .section("Data")
      .text("data,d", "FILE",
            "text, or .jsonl with {\"text\": ...} or {\"ids\": [...]} a line; for graphs that take no "
            "token ids .npz or .npy arrays, or a folder of test_data_set_0/input_0.pb ... (required); keep "
            "other "
            "data to validate with")
      .text("tokenizer", "FILE", "a tokenizer.json for text; default: the model's own")
      .integer("samples", "N", {1, 1e9}, "windows (or rows of arrays) drawn from the data", 128)
      .integer("context", "N", {1, 1e9}, "tokens of a window", 256)
      .integer("seed", "N", {0, 1e18}, "of the draw", 0)
      .section("Work")
      .text("shard", "K/N", "observe the K-th of N equal parts of the windows; join the tables with merge")
      .flag("restart", "begin anew, also where an interrupted run left FILE.json.part")
      .integer("threads,t", "N", {1, 1024}, "processor threads; default: one for each physical core")
      .example("quern calibrate model.onnx --data calibration.jsonl -o table.json",
               "ranges, histograms and moments of the inputs of every product")
      .example("quern calibrate merge part1.json part2.json -o table.json",
               "joins what two machines observed");
}

CalibrationTable read_table(const std::string& path) {
  return CalibrationTable::parse(read_input(path), path);
}

// "2/8" of the windows: [first, last).
std::pair<int64_t, int64_t> shard_of(const Arguments& arguments, int64_t windows) {
  const std::optional<std::string> text = arguments.text("shard");
  if (!text) return {0, windows};
  const size_t slash = text->find('/');
  const auto index = parse_integer(text->substr(0, slash));
  const auto count = slash == std::string::npos ? std::nullopt : parse_integer(text->substr(slash + 1));
  if (!index || !count || *index < 1 || *count < *index) {
    throw UsageError("--shard wants K/N with K from 1 to N, such as 2/8, not '" + *text + "'");
  }
  if (*count > windows) {
    throw_error(ErrorCode::BadData, "the data gives ", windows, " windows, too few for ", *count, " shards");
  }
  return {windows * (*index - 1) / *count, windows * *index / *count};
}

void print(const CalibrationTable& table, const std::string& output, double seconds, Console& console) {
  int64_t windows = 0;
  for (const auto& [first, last] : table.seen) windows += last - first;
  if (console.json()) {
    console.print_json({{"output", output},
                        {"complete", table.is_complete()},
                        {"windows_seen", windows},
                        {"windows", table.windows},
                        {"tensors", table.tensors.size()},
                        {"unreached", table.unreached()},
                        {"seconds", seconds}});
    return;
  }
  console.summary(concat("wrote ", one_line(output), ": ", table.tensors.size(), " tensors, ", windows,
                         " of ", table.windows, " windows, in ", format_number(seconds, 1), " s\n"));
}

void warn_unreached(const CalibrationTable& table, Console& console) {
  const std::vector<std::string> names = table.unreached();
  if (names.empty()) return;
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "'" : ", '") + one_line(name) + "'";
  console.warn(concat("no sample reached ", list,
                      "; weights behind them will be quantized without calibration: give more data"));
}

ExitStatus merge(const Arguments& arguments, const std::string& output, Console& console) {
  const auto start = Clock::now();
  const std::vector<std::string> paths = arguments.list("TABLE");
  if (paths.empty())
    throw UsageError("merge wants the tables to join: quern calibrate merge A.json B.json -o C.json");
  CalibrationTable table = read_table(paths.front());
  for (size_t i = 1; i < paths.size(); ++i) {
    with_context("merging '" + paths[i] + "'", [&] { table.merge(read_table(paths[i])); });
  }
  write_file(output, table.to_text());
  warn_unreached(table, console);
  print(table, output, std::chrono::duration<double>(Clock::now() - start).count(), console);
  return ExitStatus::Ok;
}

// What an interrupted run of the same calibration has left.
CalibrationTable start_of(const CalibrationTable& fresh, const std::string& part, const Arguments& arguments,
                          Console& console) {
  std::error_code ignored;
  if (arguments.flag("restart") || !std::filesystem::exists(part, ignored)) return fresh;
  CalibrationTable left = read_table(part);
  CalibrationTable joined = fresh;
  try {
    joined.merge(left);
  } catch (const Error& error) {
    throw_error(ErrorCode::InvalidArgument, "'", part, "' is of another calibration (", error.message(),
                "); remove it, or give --restart");
  }
  console.note("going on where '" + one_line(part) + "' ended");
  return joined;
}

struct Stopped {};

ExitStatus observe(const Arguments& arguments, const std::string& output, Console& console) {
  const std::optional<std::string> data_path = arguments.text("data");
  if (!data_path) throw UsageError("missing --data FILE: text, or .jsonl rows");
  if (!arguments.list("TABLE").empty())
    throw UsageError("one model at a time; tables are given after the word merge");
  const auto start = Clock::now();
  const LoadedModel model = load_model(arguments.text_of("MODEL"), arguments.text("tokenizer"), console);
  if (model.is_decoder()) passes::check_tokenizer(model.file.folder, *model.file.graph);
  const calibrate::Samples samples =
      load_samples(*data_path,
                   {.samples = arguments.integer_of("samples"),
                    .context = arguments.integer_of("context"),
                    .seed = arguments.integer_of("seed")},
                   *model.file.graph, model.tokenizer ? &*model.tokenizer : nullptr);
  const int64_t windows = samples.count();
  const std::string part = output + ".part";
  CalibrationTable table = start_of({.model_digest = digest_of(model.file),
                                     .data_digest = samples.digest,
                                     .samples = samples.options,
                                     .windows = windows},
                                    part, arguments, console);
  const InterruptRequest interrupt;
  auto saved = Clock::now();
  calibrate::TableRun run{.range = shard_of(arguments, windows),
                          .threads = static_cast<int>(arguments.integer("threads").value_or(0))};
  Progress progress(console, "observing", run.range.second - run.range.first, "windows");
  run.progress = [&](int64_t done, int64_t) {
    progress.update(done);
    if (interrupt.requested()) throw Stopped{};
    constexpr std::chrono::seconds kSaveEvery{30};
    if (Clock::now() - saved < kSaveEvery) return;
    write_file(part, table.to_text());
    saved = Clock::now();
  };
  try {
    calibrate::observe(*model.file.graph, samples, run, table);
  } catch (const Stopped&) {
    progress.finish();
    write_file(part, table.to_text());
    console.note("stopped; the same command goes on from '" + one_line(part) + "'");
    return ExitStatus::Interrupted;
  }
  progress.finish();
  write_file(output, table.to_text());
  std::error_code ignored;
  std::filesystem::remove(part, ignored);
  warn_unreached(table, console);
  print(table, output, std::chrono::duration<double>(Clock::now() - start).count(), console);
  return ExitStatus::Ok;
}

ExitStatus run(const Arguments& arguments, Console& console) {
  const std::optional<std::string> output = arguments.text("output");
  if (!output) throw UsageError("missing --output FILE.json");
  check_outputs(arguments);
  if (arguments.text_of("MODEL") == "merge") return merge(arguments, *output, console);
  return observe(arguments, *output, console);
}

}  // namespace

Command calibrate_command() {
  return {
      .name = "calibrate",
      .summary = "observe a model's activations on samples",
      .group = "Compile",
      .details =
          "Runs the model over windows drawn from the data and remembers, of the input of every product, its "
          "extremes, a histogram with the limits that percentile, entropy and squared error suggest, and per "
          "channel the largest, mean and mean square magnitude. Memory does not grow with the number of "
          "samples. Shards join to what one run gives; an interrupted run goes on where it stopped.",
      .declare = declare,
      .run = run};
}

}  // namespace quern::cli
