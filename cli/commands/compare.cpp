// quern compare: several candidates against one original, in one table.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "calibrate/compare.h"
#include "calibrate/decoder_model.h"
#include "calibrate/graph_model.h"
#include "calibrate/remembered_model.h"
#include "cli/commands/commands.h"
#include "cli/files.h"
#include "cli/format.h"
#include "cli/loaded_model.h"
#include "cli/model_facts.h"
#include "cli/progress.h"
#include "cli/report/comparison_html.h"
#include "cli/report/quantization_html.h"
#include "cli/table.h"
#include "formats/file/atomic_file.h"
#include "passes/quantize/kv_cache.h"

namespace quern::cli {
namespace {

using calibrate::Comparison;

void declare(OptionSet& options) {
  options.positional({.name = "ORIGINAL", .help = "the model as it was: ONNX or an artifact"})
      .positional({.name = "CANDIDATE", .help = "what became of it: artifacts or ONNX", .repeated = true})
      .section("Data")
      .text("data,d", "FILE",
            "held-out data (required): text, or .jsonl with {\"text\": ...} or {\"ids\": [...]} a line")
      .text("tokenizer", "FILE", "a tokenizer.json for text; default: the original's own")
      .integer("context", "N", {1, 1e9}, "score windows of N tokens; default: 256, or the models' context")
      .integer("samples", "N", {1, 1e12}, "use the first N windows alone; default: all")
      .choice("kv", passes::KvCachePass::choices(),
              "how each candidate keeps keys and values; default: as converted, else fp32")
      .integer("threads,t", "N", {1, 1024}, "processor threads; default: one for each physical core")
      .section("Results")
      .text("report", "FILE.html",
            "write one self-contained page: accuracy against size, and how each was made")
      .text("sensitivity", "FILE.json", "what quern sensitivity -o wrote, for the report")
      .example("quern compare model.onnx int8.quern int4.quern int3.quern --data heldout.txt",
               "sizes, perplexities and KL divergences side by side");
}

struct Scored {
  LoadedModel model;
  std::unique_ptr<runtime::Session> session;
  std::unique_ptr<calibrate::ScoredModel> scored;

  Scored(const std::string& path, const Arguments& arguments, Console& console,
         std::optional<DType> cache = {}) {
    model = load_model(path, arguments.text("tokenizer"), console);
    if (model.is_decoder()) {
      const runtime::SessionOptions options{
          .threads = static_cast<int>(arguments.integer("threads").value_or(0)),
          .cache_dtype = cache,
          .max_rows = 256};
      session = std::make_unique<runtime::Session>(model.program, options);
      scored = calibrate::make_decoder_model(*session);
    } else {
      scored = calibrate::make_graph_model(model.file.graph);
    }
  }
};

using Line = ComparedModel;

nlohmann::ordered_json to_json(const Line& line) {
  const Comparison& c = line.comparison;
  nlohmann::ordered_json object = {{"path", line.path},
                                   {"size_bytes", line.bytes},
                                   {"bits_per_weight", line.bits},
                                   {"kl", {{"mean", c.agreement.kl_mean}, {"p99", c.agreement.kl_p99}}},
                                   {"top1", c.agreement.top1.value}};
  if (c.kind == calibrate::ScoredModel::Kind::NextToken) {
    object["perplexity"] = c.candidate.perplexity.value;
    object["perplexity_increase"] = c.perplexity_increase.value;
  }
  if (c.labelled) object["accuracy"] = c.candidate.accuracy.value;
  return object;
}

void print(const std::string& original, int64_t bytes, const std::vector<Line>& lines, Console& console) {
  const Comparison& first = lines.front().comparison;
  const bool language = first.kind == calibrate::ScoredModel::Kind::NextToken;
  Table table({{"model"},
               {"size", Align::Right},
               {"bits/weight", Align::Right},
               {language ? "perplexity" : "accuracy", Align::Right},
               {"change", Align::Right},
               {"KL mean", Align::Right},
               {"KL 99%", Align::Right},
               {"top-1", Align::Right}});
  const auto score = [&](const calibrate::ModelScore& model) {
    if (language) return format_number(model.perplexity.value, 5);
    return first.labelled ? format_percent(model.accuracy.value) : std::string();
  };
  table.add_row({one_line(original), format_bytes(static_cast<double>(bytes)), "", score(first.reference)});
  for (const Line& line : lines) {
    const Comparison& c = line.comparison;
    const double change =
        language ? c.perplexity_increase.value : c.candidate.accuracy.value - c.reference.accuracy.value;
    table.add_row({one_line(line.path), format_bytes(static_cast<double>(line.bytes)),
                   format_fixed(line.bits, 2), score(c.candidate),
                   language || c.labelled ? format_signed_percent(change) : "",
                   format_number(c.agreement.kl_mean, 3), format_number(c.agreement.kl_p99, 3),
                   format_percent(c.agreement.top1.value)});
  }
  console.print(table.to_string());
}

ExitStatus run(const Arguments& arguments, Console& console) {
  check_outputs(arguments);
  const std::optional<std::string> data_path = arguments.text("data");
  if (!data_path) throw UsageError("missing --data FILE: held-out text or .jsonl rows");
  if (arguments.given("sensitivity") && !arguments.given("report"))
    throw UsageError("--sensitivity is for the page of --report FILE.html");
  Scored original(arguments.text_of("ORIGINAL"), arguments, console);
  const calibrate::TokenData data = calibrate::TokenData::load(
      *data_path, {.tokenizer = original.model.tokenizer ? &*original.model.tokenizer : nullptr});
  calibrate::RememberedModel reference(*original.scored);
  calibrate::CompareOptions options;
  const int64_t limit = reference.context();
  options.protocol.context =
      arguments.integer("context").value_or(limit > 0 ? std::min<int64_t>(256, limit) : 256);
  options.max_windows = arguments.integer("samples").value_or(0);
  options.threads = static_cast<int>(arguments.integer("threads").value_or(0));
  std::vector<Line> lines;
  for (const std::string& path : arguments.list("CANDIDATE")) {
    Scored candidate(path, arguments, console, cache_dtype(arguments));
    Progress progress(console, "scoring");
    progress.describe(one_line(path));
    options.progress = [&](int64_t done, int64_t total) {
      progress.set_total(total);
      progress.update(done);
    };
    lines.push_back({.path = path,
                     .bytes = candidate.model.file.size_bytes,
                     .bits = facts_of(*candidate.model.file.graph).bits_per_weight(),
                     .recipe = candidate.model.file.recipe,
                     .comparison = with_context("comparing '" + path + "'", [&] {
                       return calibrate::compare(reference, *candidate.scored, data, options);
                     })});
  }
  if (const auto path = arguments.text("report")) {
    ComparisonReport report{.original = arguments.text_of("ORIGINAL"),
                            .original_bytes = original.model.file.size_bytes,
                            .data = *data_path,
                            .candidates = lines};
    if (const auto file = arguments.text("sensitivity"))
      report.sensitivity_html = report::sensitivity_section(read_input(*file), *file);
    write_file(*path, to_html(report));
  }
  if (console.json()) {
    nlohmann::ordered_json object = {
        {"original",
         {{"path", arguments.text_of("ORIGINAL")}, {"size_bytes", original.model.file.size_bytes}}},
        {"data", {{"path", *data_path}, {"digest", data.digest}}},
        {"candidates", nlohmann::ordered_json::array()}};
    const Comparison& first = lines.front().comparison;
    if (first.kind == calibrate::ScoredModel::Kind::NextToken)
      object["original"]["perplexity"] = first.reference.perplexity.value;
    for (const Line& line : lines) object["candidates"].push_back(to_json(line));
    console.print_json(object);
  } else {
    print(arguments.text_of("ORIGINAL"), original.model.file.size_bytes, lines, console);
  }
  return ExitStatus::Ok;
}

}  // namespace

Command compare_command() {
  return {.name = "compare",
          .summary = "compare several models with their original, in one table",
          .group = "Measure",
          .details =
              "The same measurement as quern validate, for many candidates at once; the original is computed "
              "once.",
          .declare = declare,
          .run = run};
}

}  // namespace quern::cli
