#include "passes/quantize/weight_settings.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "ir/error.h"
#include "ir/near_names.h"
#include "passes/options.h"

namespace quern::passes {
namespace {

using Granularity = QuantScheme::Granularity;

// The settings under the names that recipes use, bound to the fields of one object.
OptionTable table_of(WeightSettings& settings) {
  OptionTable table;
  table.add("weights", &settings.weights, "", WeightSettings::weight_choices());
  table.add("symmetric", &settings.symmetric, "");
  table.add("granularity", &settings.granularity, "", {"auto", "tensor", "channel", "group"});
  table.add("group-size", &settings.group_size, "");
  table.add("scales", &settings.scales, "", {"auto", "f32", "f16"});
  table.add("range", &settings.range, "", {"best", "full", "restricted"});
  table.add("method", &settings.method, "", WeightSettings::method_choices());
  table.add("clip", &settings.clip, "");
  table.add("activations", &settings.activations, "", WeightSettings::activation_choices());
  table.add("activation-codes", &settings.activation_codes, "", WeightSettings::activation_code_choices());
  table.add("activation-clip", &settings.activation_clip, "");
  return table;
}

std::regex compile(const std::string& pattern, const std::string& where) {
  try {
    return std::regex(pattern, std::regex::ECMAScript | std::regex::optimize);
  } catch (const std::regex_error& error) {
    throw_error(ErrorCode::InvalidArgument, where, ": '", pattern,
                "' is no regular expression: ", error.what());
  }
}

// The letters of a pattern, for a search of near names.
std::string without_operators(const std::string& pattern) {
  std::string text;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const bool escaped = pattern[i] == '\\' && i + 1 < pattern.size();
    if (escaped) ++i;
    if (escaped || std::string_view("^$*+?()[]{}|").find(pattern[i]) == std::string_view::npos)
      text += pattern[i];
  }
  return text;
}

constexpr std::string_view kSeparators = "./:";

// A pattern speaks of a part of a name, as a rule: the runs of `count` segments of it.
std::vector<std::string> runs_of_segments(const std::string& name, size_t count) {
  std::vector<size_t> begins = {0};
  for (size_t i = 0; i < name.size(); ++i) {
    if (kSeparators.find(name[i]) != std::string_view::npos) begins.push_back(i + 1);
  }
  std::vector<std::string> runs;
  for (size_t i = 0; i + count <= begins.size(); ++i) {
    const size_t end = i + count < begins.size() ? begins[i + count] - 1 : name.size();
    runs.push_back(name.substr(begins[i], end - begins[i]));
  }
  return runs;
}

// What somebody may have meant by `wanted`: whole names, and parts of them as long as it is.
std::vector<std::string> names_to_mean(const std::vector<WeightSite>& sites, const std::string& wanted) {
  const auto segments = static_cast<size_t>(std::count_if(
      wanted.begin(), wanted.end(), [](char c) { return kSeparators.find(c) != std::string_view::npos; }));
  std::vector<std::string> names;
  std::set<std::string> seen;
  const auto add = [&](const std::string& name) {
    if (seen.insert(name).second) names.push_back(name);
  };
  for (const WeightSite& site : sites) {
    for (const std::string& name : site.names) {
      add(name);
      for (const std::string& run : runs_of_segments(name, segments + 1)) add(run);
    }
  }
  return names;
}

}  // namespace

const std::vector<std::string>& WeightSettings::weight_choices() {
  static const std::vector<std::string> choices = {"fp32", "fp16", "bf16", "fp8-e4m3", "fp8-e5m2",
                                                   "int8", "int4", "int3", "int2",     "keep"};
  return choices;
}

const std::vector<std::string>& WeightSettings::method_choices() {
  static const std::vector<std::string> choices = {"rtn", "lsq",  "hqq",         "smooth",
                                                   "awq", "gptq", "smooth+gptq", "awq+gptq"};
  return choices;
}

const std::vector<std::string>& WeightSettings::activation_choices() {
  static const std::vector<std::string> choices = {"none", "dynamic", "dynamic-token", "dynamic-tensor",
                                                   "static"};
  return choices;
}

const std::vector<std::string>& WeightSettings::activation_code_choices() {
  static const std::vector<std::string> choices = {"auto", "int8", "int8-asymmetric", "uint8",
                                                   "uint8-asymmetric"};
  return choices;
}

std::optional<DType> WeightSettings::float_dtype() const {
  if (weights == "fp32") return DType::F32;
  if (weights == "fp16") return DType::F16;
  if (weights == "bf16") return DType::BF16;
  return std::nullopt;
}

QuantizeOptions WeightSettings::quantize_options() const {
  QuantizeOptions options;
  QuantScheme& scheme = options.scheme;
  scheme.symmetric = symmetric;
  const bool few_bits = weights == "int4" || weights == "int3" || weights == "int2";
  if (few_bits) {
    scheme.code = symmetric ? DType::I4 : DType::U4;
    scheme.bits = weights == "int4" ? 0 : weights == "int3" ? 3 : 2;
  } else if (weights == "int8") {
    scheme.code = symmetric ? DType::I8 : DType::U8;
  } else {
    scheme.code = weights == "fp8-e4m3" ? DType::F8E4M3 : DType::F8E5M2;
  }
  const std::string unit = granularity != "auto" ? granularity : few_bits ? "group" : "channel";
  scheme.granularity = unit == "tensor"    ? Granularity::Tensor
                       : unit == "channel" ? Granularity::Channel
                                           : Granularity::Group;
  scheme.axis = scheme.granularity == Granularity::Group ? 1 : 0;
  scheme.group_size = scheme.granularity == Granularity::Group ? group_size : 0;
  const bool half_scales = scales == "auto" ? scheme.granularity == Granularity::Group : scales == "f16";
  options.scale_dtype = half_scales ? DType::F16 : DType::F32;
  options.range = range == "full"   ? SymmetricRange::Full
                  : range == "best" ? SymmetricRange::Best
                                    : SymmetricRange::Restricted;
  const bool by_outputs = clip == "error";
  if (by_outputs && method != "rtn" && method != "smooth" && method != "awq") {
    throw_error(ErrorCode::InvalidArgument, "clip 'error' is for the methods rtn, smooth and awq: ", method,
                " finds its scales by an error of its own");
  }
  const bool fits = method == "lsq" || (method == "awq" && !by_outputs) || method.ends_with("gptq");
  options.method = fits              ? ScaleMethod::LeastSquares
                   : method == "hqq" ? ScaleMethod::HalfQuadratic
                                     : ScaleMethod::Range;
  if (!by_outputs) options.clip = parse_clip_rule(clip);
  check_quantizable(options);
  return options;
}

WeightOverrides::WeightOverrides(const nlohmann::json& list) {
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = concat("overrides[", i, "]");
    if (!list[i].is_object() || !list[i].contains("pattern") || !list[i]["pattern"].is_string()) {
      throw_error(ErrorCode::InvalidArgument, where, " must be an object with a string 'pattern'");
    }
    Entry entry;
    entry.pattern = list[i]["pattern"].get<std::string>();
    entry.regex = compile(entry.pattern, where);
    entry.settings = list[i];
    entry.settings.erase("pattern");
    WeightSettings scratch;
    table_of(scratch).set(entry.settings, where);
    entries_.push_back(std::move(entry));
  }
}

WeightSettings WeightOverrides::apply(const WeightSettings& defaults, const WeightSite& site) {
  WeightSettings settings = defaults;
  for (Entry& entry : entries_) {
    const bool matches = std::any_of(site.names.begin(), site.names.end(), [&](const std::string& name) {
      return std::regex_search(name, entry.regex);
    });
    if (!matches) continue;
    entry.matched = true;
    table_of(settings).set(entry.settings, "override '" + entry.pattern + "'");
  }
  return settings;
}

void WeightOverrides::check_all_matched(const std::vector<WeightSite>& sites) const {
  for (const Entry& entry : entries_) {
    if (entry.matched) continue;
    const std::string wanted = without_operators(entry.pattern);
    std::string hint = did_you_mean(wanted, names_to_mean(sites, wanted));
    if (hint.empty() && !sites.empty()) {
      hint =
          "; there are '" + sites.front().name + "'" +
          (sites.size() > 1 ? concat(" and ", sites.size() - 1, " more, see quern inspect --tensors") : "");
    }
    throw_error(ErrorCode::InvalidArgument, "the pattern '", entry.pattern, "' matches no weight", hint);
  }
}

}  // namespace quern::passes
