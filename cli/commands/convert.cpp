// quern convert: an ONNX model to an artifact.
#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/files.h"
#include "cli/format.h"
#include "cli/model_file.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "formats/file/mapped_file.h"
#include "formats/onnx/export.h"
#include "passes/canonicalize/to_decoder.h"
#include "passes/compile.h"
#include "passes/quantize/weight_settings.h"

namespace quern::cli {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

void declare(OptionSet& options) {
  options.positional({.name = "MODEL", .help = "an ONNX model, or a folder that holds one"})
      .text("output,o", "FILE.quern", "where to write the artifact (required)")
      .text("tokenizer", "FILE", "tokenizer to put in; default: tokenizer.json beside the model")
      .section("Weights")
      .choice("weights", passes::WeightSettings::weight_choices(), "what weights become", "int8")
      .flag("symmetric", "scales alone (default)")
      .flag("asymmetric", "scales and zero points")
      .choice("granularity", {"tensor", "channel", "group"},
              "which weights share a scale; default: channel for 8 bits, group for fewer")
      .choice("group-size", {"16", "32", "64", "128", "256"}, "weights of a group", "32")
      .choice("method", passes::WeightSettings::method_choices(),
              "how scales are found: rtn, from the range; lsq, by least squares; hqq, half-quadratic", "rtn")
      .text("clip", "RULE", "cut off outliers first: none, percentile:99.9, mse, kl", "none")
      .texts("override", "REGEX=SETTINGS",
             "other settings for the tensors whose name in the model matches, such as "
             "'lm_head=int8' or 'down_proj=int4,asymmetric,group-size:64'")
      .section("Passes")
      .text("recipe", "FILE.json", "run these passes instead of those that the options above ask for")
      .flag("print-recipe", "print the recipe and stop")
      .texts("dump-after", "PASS", "write the graph after that pass as ONNX beside the output")
      .texts("explain-pass", "PASS", "say why the pass left things as they were")
      .example("quern convert model.onnx -o model.quern", "8-bit weights, one scale per output channel")
      .example("quern convert model.onnx -o model.quern --weights int4 --override 'lm_head=int8'",
               "4-bit weights in groups of 32, the head in 8 bits");
}

// One setting of an override: "int8", "asymmetric", "granularity:channel", "group-size:64".
void apply_setting(const std::string& setting, json& entry) {
  const size_t colon = setting.find(':');
  const std::string key = setting.substr(0, colon);
  if (colon == std::string::npos) {
    if (key == "symmetric" || key == "asymmetric") {
      entry["symmetric"] = key == "symmetric";
    } else {
      entry["weights"] = key;
    }
    return;
  }
  const std::string value = setting.substr(colon + 1);
  if (key == "group-size") {
    const std::optional<int64_t> size = parse_integer(value);
    if (!size) throw UsageError("--override: '" + value + "' is no group size");
    entry["group-size"] = *size;
  } else {
    entry[key] = value;
  }
}

json parse_override(const std::string& text) {
  const size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    throw UsageError("--override wants REGEX=SETTINGS, not '" + text + "'");
  }
  json entry = {{"pattern", text.substr(0, equals)}};
  const std::string settings = text.substr(equals + 1);
  for (size_t at = 0; at <= settings.size();) {
    const size_t comma = std::min(settings.find(',', at), settings.size());
    apply_setting(settings.substr(at, comma - at), entry);
    at = comma + 1;
  }
  return entry;
}

passes::Recipe recipe_of(const Arguments& arguments) {
  if (const auto file = arguments.text("recipe")) {
    const auto mapped = MappedFile::open(*file);
    const auto bytes = mapped->bytes();
    return passes::parse_recipe({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  if (arguments.flag("symmetric") && arguments.flag("asymmetric")) {
    throw UsageError("--symmetric and --asymmetric contradict one another");
  }
  json weights = {{"weights", arguments.text_of("weights")}, {"symmetric", !arguments.flag("asymmetric")}};
  weights["group-size"] = *parse_integer(arguments.text_of("group-size"));
  if (arguments.given("method")) weights["method"] = arguments.text_of("method");
  if (arguments.given("clip")) weights["clip"] = arguments.text_of("clip");
  if (const auto granularity = arguments.text("granularity")) weights["granularity"] = *granularity;
  json overrides = json::array();
  for (const std::string& text : arguments.list("override")) overrides.push_back(parse_override(text));
  if (!overrides.empty()) weights["overrides"] = overrides;
  return passes::conversion_recipe(weights);
}

std::optional<std::string> read_tokenizer(const Arguments& arguments, const ModelFile& model) {
  const std::optional<std::string> given = arguments.text("tokenizer");
  // Read it now: a broken tokenizer is found here, not by whoever runs the artifact.
  if (given) return find_tokenizer(*given).to_bytes();
  const auto beside = tokenizer_in(model.path.parent_path());
  if (!beside) return {};
  return tokenizer::Tokenizer::from_file(*beside).to_bytes();
}

passes::PipelineHooks hooks_of(const Arguments& arguments, Progress& progress, const std::string& output) {
  passes::PipelineHooks hooks;
  hooks.before_pass = [&progress](const std::string& pass, size_t step, size_t steps) {
    progress.set_total(static_cast<int64_t>(steps));
    progress.describe(pass);
    progress.update(static_cast<int64_t>(step));
  };
  const std::vector<std::string> dumps = arguments.list("dump-after");
  hooks.after_pass = [dumps, output](const Graph& graph, const passes::PassRun& run) {
    if (std::find(dumps.begin(), dumps.end(), run.pass) == dumps.end()) return;
    onnx_format::export_model(graph, output + "." + run.pass + ".onnx", {});
  };
  return hooks;
}

void explain(const Arguments& arguments, const passes::PipelineReport& report, Console& console) {
  for (const std::string& wanted : arguments.list("explain-pass")) {
    size_t reasons = 0;
    for (const passes::PassRun& run : report.runs) {
      if (run.pass != wanted) continue;
      for (const passes::MatchFailure& failure : run.report.failures) {
        console.note(wanted + ": " + one_line(failure.where) + ": " + one_line(failure.reason));
        ++reasons;
      }
    }
    if (reasons == 0) console.note(wanted + ": nothing was left over");
  }
}

struct Outcome {
  bool decoder = false;
  int64_t source_bytes = 0;
  int64_t artifact_bytes = 0;
  double bits_per_weight = 0;
  double seconds = 0;
  std::vector<passes::WeightResult> weights;
};

Outcome summarize(const ModelFile& model, const std::string& output,
                  std::vector<passes::WeightResult> weights) {
  Outcome outcome{.decoder = passes::is_decoder(*model.graph), .source_bytes = model.size_bytes};
  outcome.artifact_bytes = static_cast<int64_t>(std::filesystem::file_size(output));
  int64_t bytes = 0;
  int64_t count = 0;
  for (const passes::WeightResult& weight : weights) {
    bytes += weight.bytes;
    count += element_count(weight.shape);
  }
  outcome.bits_per_weight = count == 0 ? 0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(count);
  outcome.weights = std::move(weights);
  return outcome;
}

void print(const Outcome& outcome, const std::string& output, const passes::PipelineReport& report,
           Console& console) {
  if (console.json()) {
    ordered_json object = {{"output", output},
                           {"decoder", outcome.decoder},
                           {"source_bytes", outcome.source_bytes},
                           {"size_bytes", outcome.artifact_bytes},
                           {"bits_per_weight", outcome.bits_per_weight},
                           {"seconds", outcome.seconds},
                           {"weights", ordered_json::array()},
                           {"pipeline", report.to_json()}};
    for (const passes::WeightResult& weight : outcome.weights)
      object["weights"].push_back(ordered_json(to_json(weight)));
    console.print_json(object);
    return;
  }
  for (const passes::PassRun& run : report.runs) {
    for (const std::string& note : run.report.notes) console.note(one_line(note));
  }
  console.summary(concat(
      "wrote ", one_line(output), ": ", format_bytes(static_cast<double>(outcome.artifact_bytes)), " from ",
      format_bytes(static_cast<double>(outcome.source_bytes)), ", ",
      format_number(outcome.bits_per_weight, 2), " bits per weight, ",
      outcome.decoder ? "a decoder" : "a plain graph", ", in ", format_number(outcome.seconds, 1), " s\n"));
}

ExitStatus run(const Arguments& arguments, Console& console) {
  const passes::Recipe recipe = recipe_of(arguments);
  if (arguments.flag("print-recipe")) {
    console.print(passes::print_recipe(recipe));
    return ExitStatus::Ok;
  }
  const std::optional<std::string> output = arguments.text("output");
  if (!output) throw UsageError("missing --output FILE.quern");
  const auto start = std::chrono::steady_clock::now();
  ModelFile model = open_model_file(arguments.text_of("MODEL"), console);
  // Before the work, and all of it at once; what runs the artifact could only say it later.
  check_supported(model);
  passes::ArtifactParts parts{.sources = model.files};
  if (auto tokenizer = read_tokenizer(arguments, model)) {
    parts.attachments[artifact::kTokenizerJson] = std::move(*tokenizer);
  }
  passes::PassContext context{.explain = !arguments.list("explain-pass").empty()};
  passes::PipelineReport report;
  {
    Progress progress(console, "compiling", 0, "passes");
    report = passes::run_recipe(recipe, *model.graph, context, hooks_of(arguments, progress, *output));
  }
  explain(arguments, report, console);
  std::vector<passes::WeightResult> weights;
  {
    Progress progress(console, "weights", 0, "tensors");
    weights = passes::write_artifact(*model.graph, recipe, parts, *output,
                                     [&](const std::string& name, size_t done, size_t of) {
                                       progress.set_total(static_cast<int64_t>(of));
                                       progress.describe(name);
                                       progress.update(static_cast<int64_t>(done));
                                     });
  }
  Outcome outcome = summarize(model, *output, std::move(weights));
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  print(outcome, *output, report, console);
  return ExitStatus::Ok;
}

}  // namespace

Command convert_command() {
  return {
      .name = "convert",
      .summary = "turn an ONNX model into a small, fast artifact",
      .group = "Compile",
      .details =
          "Recognises the decoder in the graph, quantizes its weights and writes one file that is mapped and "
          "run as it lies. The same model and options give the same bytes.",
      .declare = declare,
      .run = run};
}

}  // namespace quern::cli
