#include "cli/exit_options.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/files.h"
#include "cli/format.h"
#include "formats/safetensors/safetensors.h"

namespace quern::cli {
namespace {

using nlohmann::json;
using runtime::ExitConfidence;
using runtime::ExitRule;

constexpr ExitConfidence kConfidences[] = {ExitConfidence::Margin,     ExitConfidence::MaxProbability,
                                           ExitConfidence::Entropy,    ExitConfidence::Saturation,
                                           ExitConfidence::Classifier, ExitConfidence::Always};

std::optional<ExitConfidence> confidence_of(const std::string& name) {
  const auto found = std::find_if(std::begin(kConfidences), std::end(kConfidences),
                                  [&](ExitConfidence c) { return runtime::to_string(c) == name; });
  return found != std::end(kConfidences) ? std::optional(*found) : std::nullopt;
}

ExitRule fixed_rule(const std::string& layer) {
  const std::optional<int64_t> number = parse_integer(layer);
  if (!number || *number < 1)
    throw UsageError("--exit fixed:K takes a number of layers, not '" + layer + "'");
  return {.confidence = ExitConfidence::Always, .threshold = 0, .layers = {*number}};
}

// What `quern calibrate-exits -o` wrote.
ExitRule read_rule(const std::string& path) {
  constexpr double kMostDecay = 1e3;  // of --exit-decay
  const json object = json::parse(read_input(path), nullptr, false);
  const auto fail = [&](const char* why) {
    throw_error(ErrorCode::BadData, "'", one_line(path), "': ", why,
                "; what `quern calibrate-exits -o` writes was expected");
  };
  if (object.is_discarded()) fail("no JSON");
  if (!object.is_object() || !object.contains("confidence") || !object["confidence"].is_string())
    fail("no \"confidence\"");
  const auto confidence = confidence_of(object["confidence"].get<std::string>());
  if (!confidence) fail("an unknown confidence");
  if (!object.contains("threshold") || !object["threshold"].is_number()) fail("no threshold was found to do");
  ExitRule rule{.confidence = *confidence, .threshold = object["threshold"].get<double>()};
  if (!(rule.threshold >= 0 && rule.threshold <= 1)) fail("a threshold lies between 0 and 1");
  if (object.contains("decay")) {
    if (!object["decay"].is_number()) fail("the decay is no number");
    rule.decay = object["decay"].get<double>();
    if (!(rule.decay >= 0 && rule.decay <= kMostDecay)) fail("a decay lies between 0 and 1000");
  }
  if (object.contains("layers")) {
    if (!object["layers"].is_array()) fail("layers are no list");
    for (const json& layer : object["layers"]) {
      if (!layer.is_number_integer()) fail("layers are whole numbers");
      rule.layers.push_back(layer.get<int64_t>());
    }
  }
  if (*confidence == ExitConfidence::Always && rule.layers.size() != 1)
    fail("a fixed exit is behind one layer");
  return rule;
}

std::vector<runtime::LinearClassifier> read_classifiers(const std::string& path,
                                                        const std::vector<int64_t>& layers) {
  const safetensors::File file = safetensors::read(path);
  std::vector<runtime::LinearClassifier> classifiers;
  for (const int64_t layer : layers) {
    const std::string name = concat("exits.", layer, ".classifier.");
    runtime::LinearClassifier& classifier = classifiers.emplace_back();
    classifier.weight = file.at(name + "weight").to_floats();
    const auto bias = file.tensors.find(name + "bias");
    if (bias != file.tensors.end() && bias->second.size() == 1)
      classifier.bias = static_cast<float>(bias->second.at(0));
  }
  return classifiers;
}

bool is_file(const std::string& text) {
  return text.ends_with(".safetensors");
}

}  // namespace

void declare_exit_options(OptionSet& options) {
  options
      .text("exit", "RULE",
            "LOSSY: leave the model in the middle where it is sure enough: margin:T, max-probability:T, "
            "entropy:T, saturation:T or classifier:T with a threshold T from 0 to 1; fixed:K, always behind "
            "layer K; or a file by `quern calibrate-exits`; of `quern validate` for encoders also hash:FILE, "
            "each "
            "token by how often FILE has it")
      .text("exit-layers", "LIST", "of the model's exit heads, use these; default: all")
      .number("exit-decay", "D", {0, 1e3},
              "hold the beginning of a text to more: the threshold is 0.9 T + 0.1 exp(-D t / N)", "0")
      .text("exit-classifiers", "FILE",
            "for classifier: a safetensors file with exits.K.classifier.weight and .bias");
}

std::optional<ExitRule> exit_rule(const Arguments& arguments) {
  const std::optional<std::string> text = arguments.text("exit");
  if (!text) {
    for (const char* name : {"exit-layers", "exit-decay", "exit-classifiers"}) {
      if (arguments.given(name)) throw UsageError(concat("--", name, " says nothing without --exit"));
    }
    return {};
  }
  const size_t colon = text->find(':');
  const auto confidence = confidence_of(text->substr(0, colon));
  if (confidence == ExitConfidence::Always && colon != std::string::npos)
    return fixed_rule(text->substr(colon + 1));
  ExitRule rule;
  if (confidence && colon != std::string::npos) {
    const std::optional<double> threshold = parse_number(text->substr(colon + 1));
    if (!threshold || !(*threshold >= 0 && *threshold <= 1))
      throw UsageError("--exit " + one_line(*text) + ": a threshold from 0 to 1 was expected");
    rule = {.confidence = *confidence, .threshold = *threshold};
  } else {
    std::error_code ignored;
    if (!std::filesystem::exists(*text, ignored)) {
      throw UsageError("--exit " + one_line(*text) +
                       ": neither a rule with its threshold (margin:T, max-probability:T, entropy:T, "
                       "saturation:T, classifier:T, fixed:K) nor a file");
    }
    rule = read_rule(*text);
  }
  if (arguments.given("exit-decay")) rule.decay = arguments.number_of("exit-decay");
  if (const auto layers = arguments.text("exit-layers")) rule.layers = parse_ids(*layers, "--exit-layers");
  if (rule.confidence == ExitConfidence::Classifier) {
    const std::optional<std::string> file = arguments.text("exit-classifiers");
    if (!file || rule.layers.empty())
      throw UsageError("--exit classifier needs --exit-classifiers FILE and --exit-layers LIST");
    rule.classifiers = read_classifiers(*file, rule.layers);
  }
  return rule;
}

std::string to_text(const ExitRule& rule) {
  if (rule.confidence == ExitConfidence::Always) return concat("fixed:", rule.layers.front());
  return concat(runtime::to_string(rule.confidence), ":", format_number(rule.threshold, 4));
}

void prepare_exits(const ExitRule& rule, LoadedModel& model) {
  model.program = runtime::compile_early_exit(*model.file.graph, rule);
}

StrategyFactory with_exits(const ExitRule& rule, const LoadedModel& model,
                           std::shared_ptr<runtime::ExitStatistics> statistics) {
  return [rule, graph = model.file.graph, statistics](runtime::Session& session, runtime::Sampler& sampler) {
    return std::make_unique<runtime::EarlyExitDecoding>(session, sampler, *graph, rule, statistics);
  };
}

nlohmann::ordered_json exit_json(const runtime::ExitStatistics& statistics, const std::string& unit) {
  nlohmann::ordered_json shares = nlohmann::ordered_json::array();
  const auto total = static_cast<double>(std::max<int64_t>(1, statistics.total()));
  for (size_t i = 0; i < statistics.tokens.size(); ++i) {
    shares.push_back({{"layers", statistics.exit_after[i]},
                      {unit, statistics.tokens[i]},
                      {"share", static_cast<double>(statistics.tokens[i]) / total}});
  }
  return {{"layers", statistics.layers},
          {"average_layers", statistics.average_layers()},
          {unit, statistics.total()},
          {"exits", shares}};
}

std::string exit_text(const runtime::ExitStatistics& statistics) {
  std::string text = concat("exits: ", format_fixed(statistics.average_layers(), 2), " of ",
                            statistics.layers, " layers on average");
  const auto total = static_cast<double>(std::max<int64_t>(1, statistics.total()));
  for (size_t i = 0; i < statistics.tokens.size(); ++i) {
    text += concat(i == 0 ? "; " : ", ", format_percent(static_cast<double>(statistics.tokens[i]) / total, 0),
                   " behind ", statistics.exit_after[i]);
  }
  return text;
}

void declare_exit_head_options(OptionSet& options) {
  options
      .text(
          "exit-heads", "HEADS",
          "put in heads that give the logits after some layers, for --exit and --speculate self: numbers of "
          "layers such as 2,4,6, or a safetensors file with trained ones")
      .choice(
          "exit-head", {"shared", "norm", "adapter"},
          "what such a head consists of: the final norm and head, its own norm before the final head, or "
          "also an adapter and, of encoders, their own pooler and classifier; default: of a file whatever it "
          "has, else shared");
}

std::vector<passes::RecipeStep> exit_head_steps(const Arguments& arguments) {
  const std::optional<std::string> given = arguments.text("exit-heads");
  if (!given) {
    if (arguments.given("exit-head")) throw UsageError("--exit-head says nothing without --exit-heads");
    return {};
  }
  json options = json::object();
  options[is_file(*given) ? "weights" : "layers"] = *given;
  // A head of adapters takes of the file whatever is there.
  options["head"] = arguments.text("exit-head").value_or(is_file(*given) ? "adapter" : "shared");
  return {{.pass = "insert-exit-heads", .options = options}};
}

std::vector<std::filesystem::path> exit_head_files(const Arguments& arguments) {
  const std::optional<std::string> given = arguments.text("exit-heads");
  if (!given || !is_file(*given)) return {};
  return {*given};
}

}  // namespace quern::cli
