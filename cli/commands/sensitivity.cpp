// quern sensitivity: what each weight's number format costs the whole model.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/calibration_options.h"
#include "cli/commands/commands.h"
#include "cli/files.h"
#include "cli/format.h"
#include "cli/loaded_model.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/target_size.h"
#include "formats/file/atomic_file.h"

namespace quern::cli {
namespace {

using nlohmann::ordered_json;
using passes::FormatCost;
using passes::TensorSensitivity;

void declare(OptionSet& options) {
  options.positional({.name = "MODEL", .help = "an ONNX decoder, or a folder that holds one"})
      .text("data,d", "FILE", "text, or .jsonl rows, to measure on (required)")
      .text("tokenizer", "FILE", "a tokenizer.json for text; default: the model's own")
      .integer("samples", "N", {1, 1e9}, "windows drawn from the data", 16)
      .integer("context", "N", {1, 1e9}, "tokens of a window", 256)
      .integer("seed", "N", {0, 1e18}, "of the draw", 0)
      .section("Weights")
      .texts("format", "TYPE", "a number format to measure; default: int2, int3, int4 and int8")
      .choice("group-size", {"16", "32", "64", "128", "256"}, "weights of a group, of fewer than 8 bits",
              "32")
      .flag("asymmetric", "scales and zero points")
      .choice("method", {"rtn", "lsq", "hqq"}, "how scales are found", "rtn")
      .integer("threads,t", "N", {1, 1024}, "processor threads; default: one for each physical core")
      .section("Results")
      .text("output,o", "FILE.json", "write the figures there too")
      .example("quern sensitivity model.onnx --data calibration.jsonl",
               "the weights that suffer most come first");
}

ordered_json to_json(const std::vector<TensorSensitivity>& tensors) {
  ordered_json list = ordered_json::array();
  for (const TensorSensitivity& tensor : tensors) {
    ordered_json object = {
        {"name", tensor.name}, {"parameters", tensor.parameters}, {"costs", ordered_json::array()}};
    for (const FormatCost& cost : tensor.costs) {
      object["costs"].push_back({{"weights", cost.weights},
                                 {"bytes", cost.bytes},
                                 {"kl", cost.kl},
                                 {"perplexity_increase", cost.perplexity_increase}});
    }
    list.push_back(std::move(object));
  }
  return {{"tensors", list}};
}

void print(std::vector<TensorSensitivity> tensors, Console& console) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const TensorSensitivity& a, const TensorSensitivity& b) {
                     return a.costs.front().kl > b.costs.front().kl;
                   });
  std::vector<Table::Column> columns = {{"weight"}, {"parameters", Align::Right}};
  for (const FormatCost& cost : tensors.front().costs)
    columns.push_back({cost.weights + ", KL", Align::Right});
  Table table(columns);
  for (const TensorSensitivity& tensor : tensors) {
    std::vector<std::string> row = {one_line(tensor.name), format_grouped(tensor.parameters)};
    for (const FormatCost& cost : tensor.costs) row.push_back(format_number(cost.kl, 3));
    table.add_row(row);
  }
  console.print(table.to_string());
}

ExitStatus run(const Arguments& arguments, Console& console) {
  check_outputs(arguments);
  const std::optional<std::string> data_path = arguments.text("data");
  if (!data_path) throw UsageError("missing --data FILE: text, or .jsonl rows");
  passes::SensitivityOptions options;
  options.settings.group_size = *parse_integer(arguments.text_of("group-size"));
  options.settings.symmetric = !arguments.flag("asymmetric");
  options.settings.method = arguments.text_of("method");
  options.threads = static_cast<int>(arguments.integer("threads").value_or(0));
  if (arguments.given("format")) options.formats = arguments.list("format");
  const LoadedModel model =
      load_decoder(arguments.text_of("MODEL"), arguments.text("tokenizer"), console, "quern sensitivity");
  const calibrate::TokenData data =
      calibrate::TokenData::load(*data_path, {.tokenizer = model.tokenizer ? &*model.tokenizer : nullptr});
  const calibrate::Samples samples =
      calibrate::draw_samples(data, {.samples = arguments.integer_of("samples"),
                                     .context = arguments.integer_of("context"),
                                     .seed = arguments.integer_of("seed")});
  std::vector<TensorSensitivity> tensors;
  {
    Progress progress(console, "measuring", 1000, kPerMille);
    options.progress = [&](const std::string& what, double fraction) {
      progress.describe(what);
      progress.update(static_cast<int64_t>(fraction * 1000));
    };
    tensors = passes::measure_sensitivity(*model.file.graph, samples, options);
  }
  if (tensors.empty()) {
    throw_error(ErrorCode::Unsupported, "'", model.file.path.string(), "' has no float weights to quantize");
  }
  const ordered_json object = to_json(tensors);
  if (const auto path = arguments.text("output")) write_file(*path, object.dump(1) + "\n");
  if (console.json()) {
    console.print_json(object);
  } else {
    print(std::move(tensors), console);
  }
  return ExitStatus::Ok;
}

}  // namespace

Command sensitivity_command() {
  return {.name = "sensitivity",
          .summary = "measure what each weight's number format costs the whole model",
          .group = "Measure",
          .details =
              "Rounds one weight at a time, all others kept, and measures the KL divergence of the model's "
              "next-token distributions from the original's. quern convert --target-bits and --target-size "
              "do this "
              "by themselves.",
          .declare = declare,
          .run = run};
}

}  // namespace quern::cli
