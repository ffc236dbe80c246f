#include "cli/recipe_options.h"
#include "cli/exit_options.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/calibration_options.h"
#include "cli/files.h"
#include "ir/error.h"
#include "passes/compile.h"
#include "passes/quantize/kv_cache.h"
#include "passes/quantize/weight_settings.h"
#include "passes/registry.h"

namespace quern::cli {
namespace {

using nlohmann::json;

const char* const kRecipeOptions[] = {"weights",          "symmetric",        "asymmetric", "granularity",
                                      "group-size",       "method",           "clip",       "activations",
                                      "activation-codes", "activation-clip",  "override",   "target-bits",
                                      "target-size",      "max-ppl-increase", "kv",         "medusa-heads",
                                      "exit-heads"};

// One setting of an override: "int8", "asymmetric", "group", "group-size:64", "scales:f32".
void apply_setting(const std::string& setting, json& entry) {
  const size_t colon = setting.find(':');
  const std::string key = setting.substr(0, colon);
  if (colon != std::string::npos) {
    const std::string value = setting.substr(colon + 1);
    const std::optional<int64_t> number = parse_integer(value);
    entry[key] = number ? json(*number) : json(value);
  } else if (key == "symmetric" || key == "asymmetric") {
    entry["symmetric"] = key == "symmetric";
  } else if (key == "tensor" || key == "channel" || key == "group") {
    entry["granularity"] = key;
  } else {
    const std::vector<std::string>& formats = passes::WeightSettings::weight_choices();
    if (std::find(formats.begin(), formats.end(), key) == formats.end()) {
      std::string all;
      for (const std::string& format : formats) all += format + ", ";
      throw UsageError("--override: '" + key + "' is no setting; there are " + all +
                       "symmetric, asymmetric, tensor, channel, group, group-size:N, method:M, clip:RULE and "
                       "scales:f16|f32");
    }
    entry["weights"] = key;
  }
}

json parse_override(const std::string& text) {
  // The pattern may hold '='; settings never do.
  const size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    throw UsageError(
        "--override takes REGEX=SETTINGS, such as 'lm_head=int8' or 'down_proj=int4,group-size:64', not '" +
        text + "'");
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

// Options that would change nothing, since what they refine is not asked for.
void refuse_idle_options(const Arguments& arguments) {
  const std::string weights = arguments.text_of("weights");
  const bool scaled =
      passes::WeightSettings{.weights = weights}.is_quantized() || arguments.given("override");
  for (const std::string_view option : {"symmetric", "asymmetric", "granularity", "group-size", "method",
                                        "clip", "activations", "activation-codes", "activation-clip"}) {
    // Weights that are kept may be codes.
    if (weights == "keep" && option.starts_with("activation")) continue;
    if (arguments.given(std::string(option)) && !scaled) {
      throw UsageError(concat("--", option, " is for weights with scales; --weights ", weights, " has none"));
    }
  }
  if (arguments.flag("symmetric") && arguments.flag("asymmetric")) {
    throw UsageError("--symmetric and --asymmetric contradict each other");
  }
  for (const char* option : {"activation-codes", "activation-clip"}) {
    if (arguments.given(option) && arguments.text_of("activations") != "static") {
      throw UsageError(std::string("--") + option + " is for --activations static");
    }
  }
  refuse_idle_calibration(arguments);
  const std::optional<std::string> granularity = arguments.text("granularity");
  if (arguments.given("group-size") && granularity && *granularity != "group") {
    throw UsageError("--group-size is for --granularity group, not " + *granularity);
  }
}

}  // namespace

void declare_recipe_options(OptionSet& options) {
  options.section("Weights")
      .choice("weights", passes::WeightSettings::weight_choices(),
              "what weights become; keep leaves each as it is", "int8")
      .flag("symmetric", "scales alone (default)")
      .flag("asymmetric", "scales and zero points")
      .choice("granularity", {"tensor", "channel", "group"},
              "which weights share a scale; default: channel for 8 bits, group for fewer")
      .choice("group-size", {"16", "32", "64", "128", "256"},
              "weights of a group; implies --granularity group")
      .choice(
          "method", passes::WeightSettings::method_choices(),
          "how codes and scales are found: rtn, from the range; lsq, by least squares; hqq, half-quadratic; "
          "smooth, awq, after scaling channels by what calibration shows; gptq, so that outputs on "
          "calibration data are kept; smooth+gptq, awq+gptq, both",
          "rtn")
      .text("clip", "RULE",
            "cut off outliers first: none, percentile:99.9, mse, kl; error, by what the outputs on "
            "calibration data lose (of "
            "rtn, smooth and awq)",
            "none")
      .choice("activations", passes::WeightSettings::activation_choices(),
              "what integer weights are multiplied with: none, activations as they are; dynamic, 8-bit codes "
              "scaled per token (and group); dynamic-token, per token; dynamic-tensor, uint8 as "
              "DynamicQuantizeLinear; "
              "static, by one scale from calibration",
              "none")
      .choice(
          "activation-codes", passes::WeightSettings::activation_code_choices(),
          "of static activations: auto, int8, and uint8-asymmetric where no sample was negative (behind a "
          "Relu); the plain ones have their zero in the middle",
          "auto")
      .text("activation-clip", "RULE",
            "cut outliers of static activations off: none, percentile:99.9, mse, kl", "none")
      .texts("override", "REGEX=SETTINGS",
             "other settings for tensors whose name in the model has a match, such as 'lm_head=int8' or "
             "'down_proj=int4,asymmetric,group-size:64'; where several match, the last wins")
      .choice("kv", passes::KvCachePass::choices(),
              "how keys and values are kept while decoding; default: fp32")
      .section("Heads")
      .text("medusa-heads", "FILE",
            "put in Medusa heads, for --speculate medusa: a safetensors file with trained ones (of `quern "
            "train-heads`, Medusa, TGI or vLLM), or fresh:K, K heads that say what the model says");
  declare_exit_head_options(options);
}

passes::Recipe recipe_of(const Arguments& arguments) {
  if (const auto file = arguments.text("recipe")) {
    for (const char* option : kRecipeOptions) {
      if (arguments.given(option)) {
        throw UsageError(std::string("--recipe and --") + option +
                         " are both given; put the setting into the recipe");
      }
    }
    return with_context("reading the recipe '" + *file + "'",
                        [&] { return passes::parse_recipe(read_input(*file)); });
  }
  json weights = weight_options(arguments);  // what makes no sense is said before files are read
  return passes::conversion_recipe(std::move(weights), calibration_record(arguments), head_steps(arguments),
                                   arguments.text("kv").value_or("model"));
}

std::vector<passes::RecipeStep> head_steps(const Arguments& arguments) {
  std::vector<passes::RecipeStep> steps = exit_head_steps(arguments);
  const std::optional<std::string> given = arguments.text("medusa-heads");
  if (!given) return steps;
  json options = {{"weights", *given}};
  if (given->starts_with("fresh:")) {
    const std::optional<int64_t> count = parse_integer(std::string_view(*given).substr(6));
    if (!count || *count < 1 || *count > 16)
      throw UsageError("--medusa-heads fresh:K takes a number from 1 to 16, not '" + given->substr(6) + "'");
    options = {{"weights", "fresh"}, {"heads", *count}};
  }
  steps.push_back({.pass = "insert-medusa-heads", .options = options});
  return steps;
}

std::vector<std::filesystem::path> head_files(const Arguments& arguments) {
  std::vector<std::filesystem::path> files = exit_head_files(arguments);
  const std::optional<std::string> given = arguments.text("medusa-heads");
  if (given && !given->starts_with("fresh:")) files.emplace_back(*given);
  return files;
}

json weight_options(const Arguments& arguments) {
  refuse_idle_options(arguments);
  json weights = {{"weights", arguments.text_of("weights")}};
  if (arguments.flag("asymmetric")) weights["symmetric"] = false;
  if (const auto granularity = arguments.text("granularity")) weights["granularity"] = *granularity;
  if (const auto size = arguments.integer("group-size")) {
    weights["granularity"] = "group";
    weights["group-size"] = *size;
  }
  if (arguments.given("method")) weights["method"] = arguments.text_of("method");
  if (arguments.given("clip")) weights["clip"] = arguments.text_of("clip");
  for (const char* name : {"activations", "activation-codes", "activation-clip"}) {
    if (arguments.given(name)) weights[name] = arguments.text_of(name);
  }
  json overrides = json::array();
  for (const std::string& text : arguments.list("override")) overrides.push_back(parse_override(text));
  if (!overrides.empty()) weights["overrides"] = overrides;
  return weights;
}

}  // namespace quern::cli
