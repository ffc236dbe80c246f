// What a weight shall become, and who says so: defaults, and overrides by the user's own tensor names.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "ir/quantize.h"
#include "passes/weights/weight_sites.h"

namespace quern::passes {

// The options of quantize-weights as they apply to one weight; their text is what recipes and flags say.
struct WeightSettings {
  std::string weights = "int8";  // one of weight_choices()
  bool symmetric = true;
  std::string granularity = "auto";  // tensor, channel, group; auto: channel for 8 bits, group for fewer
  int64_t group_size = 32;
  std::string scales = "auto";  // f32, f16; auto: f16 for groups, f32 otherwise
  std::string range = "best";   // best, full, restricted: of symmetric codes
  std::string method = "rtn";   // one of method_choices()
  std::string clip = "none";    // see parse_clip_rule(); "error": by the layer's outputs on samples
  // Of what is multiplied with integer weights: one of activation_choices(). none: 16-bit codes, which lose
  // nothing that counts; dynamic: 8-bit codes, scaled per token, and per group where the weight has groups;
  // dynamic-token: per token alone; dynamic-tensor: by DynamicQuantizeLinear's formula, a token being the
  // tensor; static: one scale for all tokens, from calibration.
  std::string activations = "none";
  std::string activation_codes = "auto";  // of static: one of activation_code_choices()
  std::string activation_clip = "none";   // of static: see parse_clip_rule()

  static const std::vector<std::string>& weight_choices();
  static const std::vector<std::string>& method_choices();
  static const std::vector<std::string>& activation_choices();
  static const std::vector<std::string>& activation_code_choices();
  // To codes with scales: integers, and floats of 8 bits.
  bool is_quantized() const { return weights.starts_with("int") || weights.starts_with("fp8"); }
  // The element type of weights that are not quantized; nothing for "keep".
  std::optional<DType> float_dtype() const;
  // Of those that are quantized. Throws Error{InvalidArgument} for a group size below 1.
  QuantizeOptions quantize_options() const;
};

// {"pattern": "lm_head|embed", "weights": "int8", ...}: the settings that are there replace the defaults' for
// every weight one of whose names the pattern (ECMAScript) is found in.
class WeightOverrides {
 public:
  // `list` is the option's JSON. Throws Error{InvalidArgument} saying which entry, on unknown keys, wrong
  // types and patterns that are no regular expressions.
  explicit WeightOverrides(const nlohmann::json& list);

  // `defaults` changed by each entry that matches, in order: where two set the same thing, the last wins.
  WeightSettings apply(const WeightSettings& defaults, const WeightSite& site);
  // Throws Error{InvalidArgument} naming the first pattern that apply() never saw match, with near names.
  void check_all_matched(const std::vector<WeightSite>& sites) const;

 private:
  struct Entry {
    std::string pattern;
    std::regex regex;
    nlohmann::json settings;
    bool matched = false;
  };
  std::vector<Entry> entries_;
};

}  // namespace quern::passes
