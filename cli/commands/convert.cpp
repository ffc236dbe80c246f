// quern convert: an ONNX model to an artifact.
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "cli/calibration_options.h"
#include "cli/commands/commands.h"
#include "cli/conversion.h"
#include "cli/exit_options.h"
#include "cli/files.h"
#include "cli/format.h"
#include "cli/model_facts.h"
#include "cli/model_file.h"
#include "cli/progress.h"
#include "cli/recipe_options.h"
#include "cli/target_size.h"
#include "formats/artifact/artifact.h"
#include "formats/onnx/export.h"
#include "ir/near_names.h"
#include "passes/canonicalize/to_decoder.h"
#include "passes/compile.h"
#include "runtime/layers/blocks.h"

namespace quern::cli {
namespace {

void declare(OptionSet& options) {
  options.positional({.name = "MODEL", .help = "an ONNX model, or a folder that holds one"})
      .text("output,o", "FILE.quern", "where to write the artifact (required)")
      .text("tokenizer", "FILE", "the tokenizer to put in; default: the one beside the model");
  declare_recipe_options(options);
  declare_calibration_options(options);
  declare_target_options(options);
  options.section("Passes")
      .text("recipe", "FILE.json", "run these passes instead of those that the options above ask for")
      .flag("print-recipe", "print the recipe and stop")
      .texts("dump-after", "PASS", "write the graph after that pass as ONNX beside the output")
      .texts("explain-pass", "PASS", "say why that pass left things as they were")
      .section("How")
      .integer("threads,t", "N", {1, 1024}, "processor threads; default: all")
      .example("quern convert model.onnx -o model.quern", "8-bit weights, one scale per output channel")
      .example("quern convert model.onnx -o model.quern --weights int4 --override 'lm_head=int8'",
               "4-bit weights in groups of 32, the head in 8 bits")
      .example("quern convert model.onnx --weights int4 --asymmetric --print-recipe > recipe.json",
               "what such options mean, as a recipe to keep or change")
      .example("quern convert model.onnx -o model.quern --recipe recipe.json --json > figures.json",
               "runs a recipe, with figures for scripts");
}

void collect_passes(const std::vector<passes::RecipeStep>& steps, std::vector<std::string>& names) {
  for (const passes::RecipeStep& step : steps) {
    if (!step.is_group() && std::find(names.begin(), names.end(), step.pass) == names.end()) {
      names.push_back(step.pass);
    }
    collect_passes(step.repeat, names);
  }
}

// A misspelt pass must not look like one that had nothing to do.
void check_passes_named(const Arguments& arguments, const passes::Recipe& recipe) {
  std::vector<std::string> names;
  collect_passes(recipe.steps, names);
  for (const char* option : {"dump-after", "explain-pass"}) {
    for (const std::string& wanted : arguments.list(option)) {
      if (std::find(names.begin(), names.end(), wanted) != names.end()) continue;
      throw UsageError(std::string("--") + option + ": the recipe has no pass '" + wanted + "'" +
                       did_you_mean(wanted, names));
    }
  }
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

void check_output(const std::string& output, const ModelFile& model) {
  std::error_code ignored;
  for (const auto& file : model.files) {
    if (std::filesystem::equivalent(output, file, ignored)) {
      throw UsageError("--output '" + output + "' is a file of the model itself");
    }
  }
}

ExitStatus run(const Arguments& arguments, Console& console) {
  passes::Recipe recipe = recipe_of(arguments);
  check_passes_named(arguments, recipe);
  if (arguments.flag("print-recipe")) {
    console.print(passes::print_recipe(recipe));
    return ExitStatus::Ok;
  }
  const std::optional<std::string> output = arguments.text("output");
  if (!output) throw UsageError("missing --output FILE.quern");
  if (!arguments.given("recipe")) require_calibration(arguments);
  check_outputs(arguments);
  const auto start = std::chrono::steady_clock::now();
  // Weights come and go one at a time: each on pages of its own, which the system has back at once.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  ModelFile model = open_model_file(arguments.text_of("MODEL"), console);
  if (model.is_artifact()) {
    throw UsageError("'" + model.path.string() +
                     "' is an artifact already; convert starts from the ONNX model");
  }
  check_output(*output, model);
  // Before the work, and all of it at once; what runs the artifact could only say it later.
  check_supported(model);
  // Read it now: a broken tokenizer is found here, not by whoever runs the artifact.
  read_folder(model, arguments.text("tokenizer"));
  passes::ArtifactParts parts{.attachments = model.folder.attachments(), .sources = model.files};
  for (const std::filesystem::path& file : head_files(arguments)) parts.sources.push_back(file);

  Conversion conversion{.model_path = model.path, .output_path = *output, .source_bytes = model.size_bytes};
  const std::optional<calibrate::Samples> samples = calibration_samples(
      arguments, *model.graph, model.folder.tokenizer ? &model.folder.tokenizer->tokenizer : nullptr);
  if (has_target(arguments)) {
    if (!samples) throw UsageError("choosing formats needs data to measure on: --calibration-data FILE");
    nlohmann::json weights = weight_options(arguments);
    choose_formats(arguments, model, *samples, weights, calibration_record(arguments), console);
    recipe = passes::conversion_recipe(weights, calibration_record(arguments), head_steps(arguments),
                                       arguments.text("kv").value_or("model"));
  }
  const std::optional<calibrate::CalibrationTable> table = calibration_table(arguments, model);
  passes::PassContext context{.threads = static_cast<int>(arguments.integer("threads").value_or(0)),
                              .explain = arguments.given("explain-pass"),
                              .samples = samples ? &*samples : nullptr,
                              .table = table ? &*table : nullptr};
  {
    Progress progress(console, "compiling", 0, "passes");
    context.progress = [&progress](const std::string& what, double fraction) {
      progress.describe(concat(what, ", ", format_percent(fraction, 0)));
    };
    conversion.report = with_context("compiling '" + model.path.string() + "'", [&] {
      return passes::run_recipe(recipe, *model.graph, context, hooks_of(arguments, progress, *output));
    });
  }
  explain(arguments, conversion.report, console);
  passes::check_tokenizer(model.folder, *model.graph);
  conversion.contradictions = apply_folder(model);
  {
    Progress progress(console, "writing", 0, "weights");
    conversion.weights = passes::write_artifact(*model.graph, recipe, parts, *output,
                                                [&](const std::string& name, size_t done, size_t of) {
                                                  progress.set_total(static_cast<int64_t>(of));
                                                  progress.describe(name);
                                                  progress.update(static_cast<int64_t>(done));
                                                });
  }
  conversion.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  // Opening it again gives the figures as they are stored, and shows that it can be opened.
  const artifact::Artifact written = artifact::Artifact::open(*output);
  conversion.artifact_bytes = static_cast<int64_t>(written.file_size());
  conversion.facts = facts_of(written.graph());
  conversion.recognised = passes::is_decoder(written.graph());
  conversion.has_tokenizer = model.folder.tokenizer.has_value();
  for (const std::string& warning : warnings_of(conversion)) console.warn(one_line(warning));
  if (arguments.given("exit-heads") && runtime::exits_of(written.graph()).empty())
    console.warn("no exit heads were put in (--explain-pass insert-exit-heads says why)");
  if (console.json()) {
    console.print_json(to_json(conversion));
  } else {
    console.summary(to_text(conversion));
  }
  return ExitStatus::Ok;
}

}  // namespace

Command convert_command() {
  return {.name = "convert",
          .summary = "turn an ONNX model into a small, fast artifact",
          .group = "Compile",
          .details =
              "Recognises the decoder in the graph, quantizes its weights and writes one file that is mapped "
              "and run as "
              "it lies. The same model and options give the same bytes. A model that is no decoder becomes "
              "an artifact "
              "of a plain graph. Memory is needed for the largest weight, not for the model.",
          .declare = declare,
          .run = run};
}

}  // namespace quern::cli
