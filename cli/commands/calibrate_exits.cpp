// quern calibrate-exits: how sure an exit must be.
#include <cmath>
#include <nlohmann/json.hpp>

#include "calibrate/dataset.h"
#include "calibrate/encoder_exit_calibration.h"
#include "calibrate/exit_calibration.h"
#include "calibrate/graph_model.h"
#include "cli/commands/commands.h"
#include "cli/exit_options.h"
#include "cli/files.h"
#include "cli/format.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "formats/file/atomic_file.h"

namespace quern::cli {
namespace {

using nlohmann::ordered_json;

void declare(OptionSet& options) {
  options
      .positional(
          {.name = "MODEL",
           .help =
               "a decoder, or an encoder that classifies, with exit heads (`quern convert --exit-heads`)"})
      .text("data,d", "FILE", "text, or .jsonl rows, like what is to be written or classified (required)")
      .text("tokenizer", "FILE", "a tokenizer.json for text; default: the model's own")
      .integer(
          "windows", "N", {1, 1e9},
          "pieces of the text, or rows that are classified, each one observation; default: 200, or all rows")
      .integer("context", "N", {4, 1e9}, "tokens of a piece", 80)
      .integer("prompt", "N", {0, 1e9}, "its first tokens, which the whole model computes", 16)
      .section("What is tolerated")
      .choice("confidence", {"margin", "max-probability", "entropy", "saturation"},
              "what is taken for how sure an exit is", "margin")
      .choice(
          "risk", {"disagreement", "perplexity"},
          "the loss of a piece: the share of tokens that the whole model would not have named, or by what "
          "share its perplexity rises; of a row: whether its class is another than the whole model's",
          "disagreement")
      .share("tolerance", "SHARE", "the risk that is tolerated; default: 5%")
      .number("confidence-level", "P", {0.5, 0.9999}, "the probability that it is kept", "0.95")
      .text("exit-layers", "LIST", "of the model's exit heads, use these; default: all")
      .number("exit-decay", "D", {0, 1e3}, "as of `quern generate`", "0")
      .integer("threads,t", "N", {1, 1024}, "processor threads; default: one for each physical core")
      .section("Results")
      .text("output,o", "FILE.json", "write what was found, for --exit")
      .example("quern calibrate-exits model.quern --data sample.txt --tolerance 5% -o exits.json",
               "finds the least threshold that keeps to it")
      .example("quern generate model.quern -p \"Once\" --exit exits.json", "decodes with it");
}

calibrate::TokenWindows windows_of(const Arguments& arguments, const LoadedModel& model,
                                   const std::string& path) {
  const calibrate::TokenData data =
      calibrate::TokenData::load(path, {.tokenizer = model.tokenizer ? &*model.tokenizer : nullptr});
  std::vector<int64_t> tokens;
  for (const calibrate::Document& document : data.documents)
    tokens.insert(tokens.end(), document.ids.begin(), document.ids.end());
  const auto length = static_cast<size_t>(arguments.integer_of("context"));
  if (tokens.size() < length) {
    throw_error(ErrorCode::BadData, "'", one_line(path), "' has ", tokens.size(),
                " tokens, fewer than a piece of ", length);
  }
  const size_t count =
      std::min(static_cast<size_t>(arguments.integer("windows").value_or(200)), tokens.size() / length);
  // Apart from one another, so that they are as independent as the text allows.
  calibrate::TokenWindows windows;
  for (size_t i = 0; i < count; ++i) {
    const auto first =
        static_cast<std::ptrdiff_t>(count > 1 ? (tokens.size() - length) * i / (count - 1) : 0);
    windows.emplace_back(tokens.begin() + first,
                         tokens.begin() + first + static_cast<std::ptrdiff_t>(length));
  }
  return windows;
}

runtime::ExitRule rule_of(const Arguments& arguments) {
  runtime::ExitRule rule;
  const std::string name = arguments.text_of("confidence");
  for (const auto confidence : {runtime::ExitConfidence::Margin, runtime::ExitConfidence::MaxProbability,
                                runtime::ExitConfidence::Entropy, runtime::ExitConfidence::Saturation}) {
    if (runtime::to_string(confidence) == name) rule.confidence = confidence;
  }
  rule.decay = arguments.number_of("exit-decay");
  if (const auto layers = arguments.text("exit-layers")) rule.layers = parse_ids(*layers, "--exit-layers");
  return rule;
}

// Texts that a decoder goes on with.
calibrate::ThresholdResult search_decoder(const Arguments& arguments, LoadedModel& model,
                                          const std::string& path, const runtime::ExitRule& rule,
                                          calibrate::ThresholdSearch& search, Console& console,
                                          int64_t& windows) {
  passes::check_tokenizer(model.file.folder, *model.file.graph);
  prepare_exits(rule, model);
  runtime::Session session(model.program,
                           {.threads = static_cast<int>(arguments.integer("threads").value_or(0))});
  const auto risk = arguments.text_of("risk") == "perplexity" ? calibrate::ExitRisk::Perplexity
                                                              : calibrate::ExitRisk::Disagreement;
  Progress progress(console, "testing", 20, "thresholds");
  calibrate::ExitEvaluator evaluator(session, *model.file.graph, rule, windows_of(arguments, model, path),
                                     {.prompt = arguments.integer_of("prompt"), .risk = risk});
  windows = evaluator.windows();
  search.tried = [&](const calibrate::ThresholdStep&) { progress.advance(); };
  return calibrate::find_exit_threshold(evaluator, search);
}

// Rows that an encoder classifies.
calibrate::ThresholdResult search_encoder(const Arguments& arguments, const LoadedModel& model,
                                          const std::string& path, const runtime::ExitRule& rule,
                                          calibrate::ThresholdSearch& search, Console& console,
                                          int64_t& rows) {
  if (arguments.text_of("risk") == "perplexity")
    throw UsageError("--risk perplexity is for decoders; of classifiers the risk is disagreement");
  if (rule.confidence == runtime::ExitConfidence::Saturation)
    throw UsageError("--confidence saturation is for decoders");
  const calibrate::TokenData data =
      calibrate::TokenData::load(path, {.tokenizer = model.tokenizer ? &*model.tokenizer : nullptr,
                                        .samples = arguments.integer("windows").value_or(0)});
  data.check_ids(calibrate::table_rows(calibrate::TokenInputs(*model.file.graph).ids()));
  calibrate::Texts texts;
  std::vector<int64_t> labels;
  for (const calibrate::Document& document : data.documents) {
    if (document.ids.empty())
      throw_error(ErrorCode::BadData, data.where(document), " has no tokens to classify");
    texts.emplace_back(document.ids);
    if (data.labelled()) labels.push_back(*document.label);
  }
  Progress progress(console, "classifying", static_cast<int64_t>(texts.size()), "texts");
  const calibrate::EncoderExitEvaluator evaluator(*model.file.graph, rule, texts, std::move(labels),
                                                  [&](int64_t done) { progress.update(done); });
  rows = evaluator.texts();
  return calibrate::find_exit_threshold([&](double threshold) { return evaluator.evaluate(threshold); },
                                        search);
}

ordered_json to_json(const Arguments& arguments, const runtime::ExitRule& rule, int64_t windows,
                     const calibrate::ThresholdSearch& search, const calibrate::ThresholdResult& result) {
  ordered_json object = {{"confidence", runtime::to_string(rule.confidence)},
                         {"threshold", result.threshold ? ordered_json(*result.threshold) : ordered_json()},
                         {"decay", rule.decay},
                         {"layers", rule.layers},
                         {"risk", arguments.text_of("risk")},
                         {"tolerance", search.tolerance},
                         {"confidence_level", 1 - search.delta},
                         {"windows", windows},
                         {"steps", ordered_json::array()}};
  for (const calibrate::ThresholdStep& step : result.steps) {
    ordered_json& entry = object["steps"].emplace_back(ordered_json{{"threshold", step.threshold},
                                                                    {"risk", step.risk},
                                                                    {"p_value", step.p_value},
                                                                    {"accepted", step.accepted},
                                                                    {"average_layers", step.average_layers}});
    if (std::isfinite(step.perplexity_increase)) entry["perplexity_increase"] = step.perplexity_increase;
    if (step.accuracy) entry["accuracy"] = *step.accuracy;
  }
  return object;
}

void print(const calibrate::ThresholdSearch& search, const calibrate::ThresholdResult& result, bool encoder,
           Console& console) {
  Table table({{"threshold", Align::Right},
               {"risk", Align::Right},
               {"p-value", Align::Right},
               {"layers", Align::Right},
               {encoder ? "accuracy" : "perplexity", Align::Right},
               {""}});
  for (const calibrate::ThresholdStep& step : result.steps) {
    table.add_row({format_number(step.threshold, 3), format_percent(step.risk, 2),
                   format_number(step.p_value, 2), format_fixed(step.average_layers, 2),
                   !encoder        ? format_percent(step.perplexity_increase, 2)
                   : step.accuracy ? format_percent(*step.accuracy, 2)
                                   : "",
                   step.accepted ? "" : "not shown to be kept"});
  }
  console.print(table.to_string());
  const std::string tolerated = concat("a risk of at most ", format_percent(search.tolerance, 1),
                                       " with probability ", format_percent(1 - search.delta, 0));
  console.summary(
      result.threshold
          ? concat("threshold ", format_number(*result.threshold, 3), ": ", tolerated, "\n")
          : concat("no threshold: ", tolerated, " could not be shown; more --windows may help\n"));
}

ExitStatus run(const Arguments& arguments, Console& console) {
  check_outputs(arguments);
  const std::optional<std::string> path = arguments.text("data");
  if (!path) throw UsageError("missing --data FILE: text, or .jsonl rows");
  LoadedModel model = load_model(arguments.text_of("MODEL"), arguments.text("tokenizer"), console);
  const runtime::ExitRule rule = rule_of(arguments);
  calibrate::ThresholdSearch search{
      .tolerance = parse_share(arguments.text("tolerance").value_or("5%")).value(),
      .delta = 1 - arguments.number_of("confidence-level")};
  int64_t windows = 0;
  const calibrate::ThresholdResult result =
      model.is_decoder() ? search_decoder(arguments, model, *path, rule, search, console, windows)
                         : search_encoder(arguments, model, *path, rule, search, console, windows);
  const ordered_json object = to_json(arguments, rule, windows, search, result);
  if (const auto output = arguments.text("output")) write_file(*output, object.dump(1) + "\n");
  if (console.json()) {
    console.print_json(object);
  } else {
    print(search, result, !model.is_decoder(), console);
  }
  return result.threshold ? ExitStatus::Ok : ExitStatus::ThresholdMissed;
}

}  // namespace

Command calibrate_exits_command() {
  return {
      .name = "calibrate-exits",
      .summary = "find how sure early exits must be to lose no more than is tolerated",
      .group = "Measure",
      .details =
          "Learn then Test with fixed-sequence testing: thresholds from 1 downwards, each tested by a "
          "Hoeffding-Bentkus p-value, until one can't be shown to keep the risk. What is stated holds for "
          "text like the data. The exit status is 1 where no threshold was found.",
      .declare = declare,
      .run = run};
}

}  // namespace quern::cli
