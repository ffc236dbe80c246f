#include "cli/sampling.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "ir/error.h"

namespace quern::cli {
namespace {

// The option where it is given, else what is suggested, else what it is without either.
template <class T>
T chosen(const std::optional<T>& given, const std::optional<T>& suggested, T otherwise) {
  return given ? *given : suggested.value_or(otherwise);
}

std::optional<double> given_number(const Arguments& arguments, const char* name) {
  return arguments.given(name) ? arguments.number(name) : std::nullopt;
}

std::optional<int64_t> given_integer(const Arguments& arguments, const char* name) {
  return arguments.given(name) ? arguments.integer(name) : std::nullopt;
}

}  // namespace

void declare_sampling_options(OptionSet& options) {
  options.section("Sampling (default: greedy, always the most likely token)")
      .flag("sample",
            "sample with the values that the model's makers suggest in its generation_config.json; the "
            "options below replace them one by one. A model that suggests none: temperature 1")
      .number("temperature", "T", {0, 100}, "sample, the more adventurous the higher; 0 is greedy")
      .integer("top-k", "K", {0, 1e9}, "sample from the K most likely tokens; 0: all", 0)
      .number("top-p", "P", {0, 1}, "sample from the most likely tokens that together have this probability",
              "1")
      .number("min-p", "P", {0, 1},
              "sample from tokens of at least this share of the most likely one's probability", "0")
      .number("repetition-penalty", "R", {0.01, 100}, "make tokens that occurred less likely; 1: do not", "1")
      .integer("seed", "N", {0, 9e15}, "the same seed gives the same text", 0);
}

Sampling read_sampling(const Arguments& arguments, const artifact::GenerationConfig& suggestions) {
  Sampling sampling;
  sampling.as_suggested = arguments.flag("sample");
  const artifact::GenerationConfig s = sampling.as_suggested ? suggestions : artifact::GenerationConfig{};
  const std::optional<double> temperature = given_number(arguments, "temperature");
  if (sampling.as_suggested && temperature == 0)
    throw UsageError("--sample and --temperature 0, which is greedy, exclude one another");
  const bool narrowed = arguments.given("top-k") || arguments.given("top-p") || arguments.given("min-p");
  runtime::SamplingOptions& options = sampling.options;
  options.sample = sampling.as_suggested || (temperature ? *temperature > 0 : narrowed);
  if (options.sample) options.temperature = static_cast<float>(chosen(temperature, s.temperature, 1.0));
  options.top_k = chosen(given_integer(arguments, "top-k"), s.top_k, int64_t{0});
  options.top_p = static_cast<float>(chosen(given_number(arguments, "top-p"), s.top_p, 1.0));
  options.min_p = static_cast<float>(chosen(given_number(arguments, "min-p"), s.min_p, 0.0));
  options.repetition_penalty =
      static_cast<float>(chosen(given_number(arguments, "repetition-penalty"), s.repetition_penalty, 1.0));
  options.seed = static_cast<uint64_t>(arguments.integer_of("seed"));
  try {
    options.check();
  } catch (const Error& error) {
    if (!sampling.as_suggested) throw;
    throw_error(ErrorCode::BadData, "the model suggests sampling that cannot be done: ", error.message(),
                "; give the option yourself, or leave --sample out");
  }
  sampling.suggested = !options.sample && !temperature && suggestions.sample.value_or(false);
  return sampling;
}

std::string sampling_text(const Sampling& sampling) {
  const runtime::SamplingOptions& o = sampling.options;
  std::string text = o.sample ? concat("sampled with temperature ", o.temperature) : "greedy";
  if (o.sample && o.top_k > 0) text += concat(", top-k ", o.top_k);
  if (o.sample && o.top_p < 1) text += concat(", top-p ", o.top_p);
  if (o.sample && o.min_p > 0) text += concat(", min-p ", o.min_p);
  if (o.repetition_penalty != 1) text += concat(", repetition penalty ", o.repetition_penalty);
  if (o.sample) text += concat(", seed ", o.seed);
  if (sampling.suggested) text += " (its makers suggest sampling: --sample)";
  return text;
}

nlohmann::ordered_json sampling_json(const runtime::SamplingOptions& o) {
  // Through their decimal text, so that 0.9 is not printed as 0.8999999761581421.
  const auto number = [](float value) { return std::stod(concat(value)); };
  return {{"sample", o.sample},
          {"temperature", number(o.temperature)},
          {"top_k", o.top_k},
          {"top_p", number(o.top_p)},
          {"min_p", number(o.min_p)},
          {"repetition_penalty", number(o.repetition_penalty)},
          {"seed", o.seed}};
}

}  // namespace quern::cli
