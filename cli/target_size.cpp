#include "cli/target_size.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "calibrate/compare.h"
#include "calibrate/decoder_model.h"
#include "cli/format.h"
#include "cli/progress.h"
#include "passes/compile.h"
#include "runtime/decoder/session.h"

namespace quern::cli {
namespace {

using nlohmann::json;
using passes::TensorSensitivity;

calibrate::Samples half_of(const calibrate::Samples& samples, bool second) {
  calibrate::Samples half = samples;
  const auto middle = samples.windows.begin() + static_cast<ptrdiff_t>(samples.windows.size() / 2);
  if (second) {
    half.windows.assign(middle, samples.windows.end());
  } else {
    half.windows.assign(samples.windows.begin(), middle);
  }
  return half;
}

int64_t bytes_at(const std::vector<TensorSensitivity>& tensors, const std::vector<size_t>& choice) {
  int64_t bytes = 0;
  for (size_t t = 0; t < tensors.size(); ++t) bytes += tensors[t].costs[choice[t]].bytes;
  return bytes;
}

int64_t parameters_of(const std::vector<TensorSensitivity>& tensors) {
  int64_t count = 0;
  for (const TensorSensitivity& tensor : tensors) count += tensor.parameters;
  return count;
}

json with_overrides(json weights, const std::vector<TensorSensitivity>& tensors,
                    const std::vector<size_t>& choice) {
  json overrides = passes::overrides_of(tensors, choice);
  for (const json& own : weights.value("overrides", json::array())) overrides.push_back(own);
  weights["overrides"] = overrides;
  return weights;
}

// Measures whole models: the original once, candidates as they come.
class WholeModel {
 public:
  WholeModel(const ModelFile& model, const calibrate::Samples& seen, const calibrate::Samples& unseen)
      : model_(model), seen_(seen) {
    for (const auto& window : unseen.windows) data_.documents.push_back({.ids = window});
    data_.source = unseen.source;
    options_.protocol.context = unseen.options.context;
    original_ = model.graph->clone();
    passes::prepare_for_execution(*original_);
  }
  const Graph& original() const { return *original_; }

  calibrate::Comparison measure(const json& weights, const json& calibration) {
    const std::unique_ptr<Graph> graph = model_.graph->clone();
    passes::PassContext context;
    context.samples = &seen_;
    passes::Recipe recipe = passes::conversion_recipe(weights, calibration);
    recipe.steps.push_back({.pass = "materialize-weights"});
    passes::run_recipe(recipe, *graph, context);
    runtime::Session before(runtime::Program::compile(*original_));
    runtime::Session after(runtime::Program::compile(*graph));
    const auto reference = calibrate::make_decoder_model(before);
    const auto candidate = calibrate::make_decoder_model(after);
    return calibrate::compare(*reference, *candidate, data_, options_);
  }

 private:
  const ModelFile& model_;
  const calibrate::Samples& seen_;
  calibrate::TokenData data_;
  calibrate::CompareOptions options_;
  std::unique_ptr<Graph> original_;
};

// The smallest size that keeps the limit, by bisection over bits per weight.
std::vector<size_t> smallest(const std::vector<TensorSensitivity>& tensors, WholeModel& whole, double limit,
                             const json& weights, const json& calibration, Console& console) {
  std::vector<size_t> least(tensors.size());
  std::vector<size_t> most;
  for (const TensorSensitivity& tensor : tensors) most.push_back(tensor.costs.size() - 1);
  const auto increase = [&](const std::vector<size_t>& choice) {
    const auto bits =
        8.0 * static_cast<double>(bytes_at(tensors, choice)) / static_cast<double>(parameters_of(tensors));
    const double found =
        whole.measure(with_overrides(weights, tensors, choice), calibration).perplexity_increase.value;
    console.note(concat("tried ", format_fixed(bits, 2), " bits per weight: perplexity ",
                        format_signed_percent(found)));
    return found;
  };
  if (increase(most) > limit) {
    throw_error(ErrorCode::InvalidArgument, "even the largest formats raise the perplexity by more than ",
                format_percent(limit), "; allow more, or give --format a wider one");
  }
  auto low = static_cast<double>(bytes_at(tensors, least));
  auto high = static_cast<double>(bytes_at(tensors, most));
  std::vector<size_t> best = most;
  constexpr int kTries = 7;
  for (int i = 0; i < kTries; ++i) {
    const double middle = std::sqrt(low * high);
    const std::vector<size_t> choice = passes::assign_formats(tensors, static_cast<int64_t>(middle));
    if (increase(choice) <= limit) {
      best = choice;
      high = middle;
    } else {
      low = middle;
    }
  }
  return best;
}

void report(const std::vector<TensorSensitivity>& tensors, const std::vector<size_t>& choice,
            const calibrate::Comparison& comparison, Console& console) {
  std::map<std::string, std::pair<int, int64_t>> by_format;
  double sum = 0;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const passes::FormatCost& cost = tensors[t].costs[choice[t]];
    by_format[cost.weights].first += 1;
    by_format[cost.weights].second += tensors[t].parameters;
    sum += cost.kl;
  }
  std::string text;
  for (const auto& [format, counts] : by_format) {
    text += concat(
        text.empty() ? "" : ", ", format, " for ", counts.first, " tensors (",
        format_percent(static_cast<double>(counts.second) / static_cast<double>(parameters_of(tensors)), 0),
        ")");
  }
  console.note("chose " + text);
  console.note(concat("whole model on held-out samples: KL ", format_number(comparison.agreement.kl_mean, 3),
                      " (the tensors' own add up to ", format_number(sum, 3), "), perplexity ",
                      format_signed_percent(comparison.perplexity_increase.value)));
}

}  // namespace

void declare_target_options(OptionSet& options) {
  options.section("Formats chosen by sensitivity (on --calibration-data)")
      .number("target-bits", "BITS", {1, 32},
              "so that weights take at most this, on average, scales included")
      .text("target-size", "SIZE", "so that weights take at most this: 40MB, 1.5GB")
      .share("max-ppl-increase", "SHARE",
             "the smallest size that raises the perplexity by no more than this: 0.5%")
      .texts("format", "TYPE", "a format to choose from; default: int3, int4 and int8");
}

bool has_target(const Arguments& arguments) {
  return arguments.given("target-bits") || arguments.given("target-size") ||
         arguments.given("max-ppl-increase");
}

void choose_formats(const Arguments& arguments, const ModelFile& model, const calibrate::Samples& samples,
                    json& weights, const json& calibration, Console& console) {
  const int given = static_cast<int>(arguments.given("target-bits")) +
                    static_cast<int>(arguments.given("target-size")) +
                    static_cast<int>(arguments.given("max-ppl-increase"));
  if (given != 1)
    throw UsageError("--target-bits, --target-size and --max-ppl-increase are three ways to say one thing");
  if (arguments.number("max-ppl-increase").value_or(0) < 0)
    throw UsageError("--max-ppl-increase is 0% or more: quantizing is not asked to improve the model");
  if (samples.arrays) {
    throw_error(
        ErrorCode::BadData, "'", samples.source,
        "' holds arrays, and choosing formats measures what a decoder says of text: give text, or .jsonl "
        "rows, or choose by hand with --override and quern validate");
  }
  if (samples.windows.size() < 2) {
    throw_error(ErrorCode::BadData, "'", samples.source, "' gives ", samples.windows.size(),
                samples.windows.size() == 1 ? " window" : " windows",
                "; choosing formats wants one to measure and another to check with");
  }
  const calibrate::Samples seen = half_of(samples, false);
  const calibrate::Samples unseen = half_of(samples, true);
  WholeModel whole(model, seen, unseen);
  passes::SensitivityOptions options;
  options.formats =
      arguments.given("format") ? arguments.list("format") : std::vector<std::string>{"int3", "int4", "int8"};
  options.settings.symmetric = weights.value("symmetric", true);
  options.settings.group_size = weights.value("group-size", int64_t{32});
  options.settings.granularity = weights.value("granularity", std::string("auto"));
  options.settings.method = weights.value("method", std::string("rtn"));
  std::string& method = options.settings.method;
  if (method.ends_with("gptq") || method == "awq") method = "lsq";
  if (method == "smooth") method = "rtn";
  // A few windows tell tensors apart; the whole model is checked on more.
  constexpr size_t kWindows = 8;
  calibrate::Samples few = seen;
  few.windows.resize(std::min(few.windows.size(), kWindows));
  std::vector<TensorSensitivity> tensors;
  {
    Progress progress(console, "sensitivity", 1000, kPerMille);
    options.progress = [&](const std::string& what, double fraction) {
      progress.describe(what);
      progress.update(static_cast<int64_t>(fraction * 1000));
    };
    tensors = passes::measure_sensitivity(whole.original(), few, options);
  }
  std::vector<size_t> choice;
  if (const auto limit = arguments.number("max-ppl-increase")) {
    choice = smallest(tensors, whole, *limit, weights, calibration, console);
  } else if (const auto bits = arguments.number("target-bits")) {
    choice = passes::assign_formats(
        tensors, static_cast<int64_t>(*bits * static_cast<double>(parameters_of(tensors)) / 8));
  } else {
    const std::optional<int64_t> size = parse_size(arguments.text_of("target-size"));
    if (!size)
      throw UsageError("--target-size wants a size such as 40MB, not '" + arguments.text_of("target-size") +
                       "'");
    choice = passes::assign_formats(tensors, *size);
  }
  weights = with_overrides(std::move(weights), tensors, choice);
  report(tensors, choice, whole.measure(weights, calibration), console);
}

std::optional<int64_t> parse_size(const std::string& text) {
  size_t end = 0;
  while (end < text.size() && (std::isdigit(static_cast<unsigned char>(text[end])) != 0 || text[end] == '.'))
    ++end;
  const std::optional<double> number = parse_number(text.substr(0, end));
  if (!number || *number < 0) return {};
  static const std::map<std::string, double> kUnits = {{"", 1},         {"B", 1},       {"KB", 1e3},
                                                       {"MB", 1e6},     {"GB", 1e9},    {"KiB", 0x1p10},
                                                       {"MiB", 0x1p20}, {"GiB", 0x1p30}};
  const auto unit = kUnits.find(text.substr(end));
  if (unit == kUnits.end() || *number * unit->second > 1e18) return {};
  return static_cast<int64_t>(*number * unit->second);
}

}  // namespace quern::cli
