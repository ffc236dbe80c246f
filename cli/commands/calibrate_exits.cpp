// quern calibrate-exits: how sure an exit must be.
#include <nlohmann/json.hpp>

#include "calibrate/dataset.h"
#include "calibrate/exit_calibration.h"
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
  options.positional({.name = "MODEL", .help = "a decoder with exit heads (`quern convert --exit-heads`)"})
      .text("data,d", "FILE", "text, or .jsonl rows, like what is to be written (required)")
      .text("tokenizer", "FILE", "a tokenizer.json for text; default: the model's own")
      .integer("windows", "N", {1, 1e9}, "pieces of the text, each one observation", 200)
      .integer("context", "N", {4, 1e9}, "tokens of a piece", 80)
      .integer("prompt", "N", {0, 1e9}, "its first tokens, which the whole model computes", 16)
      .section("What is tolerated")
      .choice("confidence", {"margin", "max-probability", "entropy", "saturation"},
              "what is taken for how sure an exit is", "margin")
      .choice(
          "risk", {"disagreement", "perplexity"},
          "the loss of a piece: the share of tokens that the whole model would not have named, or by what "
          "share its perplexity rises",
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
  const size_t count = std::min(static_cast<size_t>(arguments.integer_of("windows")), tokens.size() / length);
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
    object["steps"].push_back({{"threshold", step.threshold},
                               {"risk", step.risk},
                               {"p_value", step.p_value},
                               {"accepted", step.accepted},
                               {"average_layers", step.average_layers},
                               {"perplexity_increase", step.perplexity_increase}});
  }
  return object;
}

void print(const calibrate::ThresholdSearch& search, const calibrate::ThresholdResult& result,
           Console& console) {
  Table table({{"threshold", Align::Right},
               {"risk", Align::Right},
               {"p-value", Align::Right},
               {"layers", Align::Right},
               {"perplexity", Align::Right},
               {""}});
  for (const calibrate::ThresholdStep& step : result.steps) {
    table.add_row({format_number(step.threshold, 3), format_percent(step.risk, 2),
                   format_number(step.p_value, 2), format_fixed(step.average_layers, 2),
                   format_percent(step.perplexity_increase, 2), step.accepted ? "" : "not shown to be kept"});
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
  LoadedModel model =
      load_decoder(arguments.text_of("MODEL"), arguments.text("tokenizer"), console, "quern calibrate-exits");
  const runtime::ExitRule rule = rule_of(arguments);
  prepare_exits(rule, model);
  runtime::Session session(model.program,
                           {.threads = static_cast<int>(arguments.integer("threads").value_or(0))});
  const auto risk = arguments.text_of("risk") == "perplexity" ? calibrate::ExitRisk::Perplexity
                                                              : calibrate::ExitRisk::Disagreement;
  calibrate::ThresholdSearch search{
      .tolerance = parse_share(arguments.text("tolerance").value_or("5%")).value(),
      .delta = 1 - arguments.number_of("confidence-level")};
  int64_t windows = 0;
  const calibrate::ThresholdResult result = [&] {
    Progress progress(console, "testing", 20, "thresholds");
    calibrate::ExitEvaluator evaluator(session, *model.file.graph, rule, windows_of(arguments, model, *path),
                                       {.prompt = arguments.integer_of("prompt"), .risk = risk});
    windows = evaluator.windows();
    search.tried = [&](const calibrate::ThresholdStep&) { progress.advance(); };
    return calibrate::find_exit_threshold(evaluator, search);
  }();
  const ordered_json object = to_json(arguments, rule, windows, search, result);
  if (const auto output = arguments.text("output")) write_file(*output, object.dump(1) + "\n");
  if (console.json()) {
    console.print_json(object);
  } else {
    print(search, result, console);
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
