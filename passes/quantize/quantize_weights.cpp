#include "passes/quantize/quantize_weights.h"

#include <algorithm>
#include <map>

#include "ir/activation_scheme.h"
#include "ir/products.h"
#include "ir/rewriter.h"
#include "ir/weight_ops.h"
#include "passes/quantize/balance_channels.h"
#include "passes/quantize/calibrate_weights.h"

namespace quern::passes {
namespace {

// ONNX's numbers for element types (TensorProto.DataType).
int64_t onnx_dtype(DType dtype) {
  constexpr int64_t kFloat = 1;
  constexpr int64_t kFloat16 = 10;
  constexpr int64_t kBFloat16 = 16;
  return dtype == DType::F16 ? kFloat16 : dtype == DType::BF16 ? kBFloat16 : kFloat;
}

// The node that turns the weight into what is wanted; null where it is that already.
Node* add_conversion(Rewriter& rewriter, const WeightSite& site, const WeightSettings& settings,
                     bool is_calibrated) {
  const bool convolves = std::any_of(site.uses.begin(), site.uses.end(),
                                     [](const Use& use) { return is_convolution(*use.node); });
  if (settings.is_quantized()) {
    Attributes attributes = to_attributes(settings.quantize_options());
    const std::string& method = settings.method;
    const bool by_outputs = method.ends_with("gptq") || settings.clip == "error";
    if (by_outputs && !convolves) {
      attributes[kCalibrateAttribute] = std::string(settings.clip == "error" ? "clip-error" : "layer-error");
    }
    if ((method == "awq" && !by_outputs) || (by_outputs && convolves) || (method == "lsq" && is_calibrated))
      attributes[kCalibrateAttribute] = std::string("importance");
    for (const char* family : {"awq", "smooth"}) {
      if (method.starts_with(family) && !convolves) attributes[kBalanceAttribute] = std::string(family);
    }
    return rewriter.add_node({.op = "QuantizeWeight",
                              .domain = std::string(kQuernDomain),
                              .inputs = {site.value},
                              .attributes = std::move(attributes)});
  }
  const std::optional<DType> dtype = settings.float_dtype();
  // A quantized weight is of float type to whoever reads it: the Cast is what makes it plain.
  if (!dtype || (site.value->dtype() == *dtype && !site.is_quantized())) return nullptr;
  return rewriter.add_node(
      {.op = "Cast", .inputs = {site.value}, .attributes = {{"to", onnx_dtype(*dtype)}}});
}

// None for static ones, whose scales are still to be seen.
Attributes dynamic_activations(const WeightSettings& settings) {
  using Kind = ActivationScheme::Kind;
  ActivationScheme scheme;
  if (settings.activations == "dynamic") scheme.kind = Kind::Group;
  if (settings.activations == "dynamic-token") scheme.kind = Kind::Token;
  if (settings.activations == "dynamic-tensor") scheme.kind = Kind::TokenAsymmetric;
  return to_attributes(scheme);
}

void mark_activations(Rewriter& rewriter, Node* linear, const WeightSettings& settings) {
  if (settings.activations == "static") {
    parse_clip_rule(settings.activation_clip);  // says so now, if it is none
    rewriter.set_attribute(linear, kStaticActivations,
                           settings.activation_codes + " " + settings.activation_clip);
    return;
  }
  for (const auto& [name, value] : dynamic_activations(settings)) rewriter.set_attribute(linear, name, value);
}

// Codes of integers, which can be multiplied with codes of activations.
bool has_integer_codes(const WeightSite& site) {
  if (const QuantizedTensor* quantized = site.value->quantized()) return is_integer(quantized->scheme.code);
  const PackedTensor* packed = site.value->packed();
  return packed != nullptr && packed->spec().is_quantized() && is_integer(packed->spec().dtype());
}

// Of weights that are kept: whether something of what they are multiplied with is to be rounded otherwise
// than it was.
bool change_activations(const WeightSite& site, const WeightSettings& settings,
                        std::unique_ptr<Rewriter>& rewriter) {
  bool changed = false;
  for (const Use& use : site.uses) {
    if (!is_product(*use.node)) continue;
    const std::string before = use.node->string_attribute("activations", "");
    const bool is_static = before == "static" || use.node->has_attribute(kStaticActivations);
    const Attributes wanted = dynamic_activations(settings);
    const auto kind = wanted.find("activations");
    if (kind == wanted.end() ? is_static : std::get<std::string>(kind->second) == before) continue;
    if (!rewriter) rewriter = std::make_unique<Rewriter>(*site.value->graph());
    for (const char* name : {"activation_scale", "activation_low", "activation_high"}) {
      if (use.node->has_attribute(name)) rewriter->remove_attribute(use.node, name);
    }
    mark_activations(*rewriter, use.node, settings);
    changed = true;
  }
  return changed;
}

}  // namespace

QuantizeWeights::QuantizeWeights() : Pass("quantize-weights", "decide the number format of every weight") {
  std::vector<std::string> same_or = {"same"};
  const std::vector<std::string>& choices = WeightSettings::weight_choices();
  same_or.insert(same_or.end(), choices.begin(), choices.end());
  option("weights", &defaults_.weights, "The number format; 'keep' leaves weights as they are.", choices);
  option("symmetric", &defaults_.symmetric,
         "Integers without zero points; otherwise with one for each scale.");
  option("granularity", &defaults_.granularity,
         "What shares a scale; 'auto' is 'channel' for 8 bits and 'group' for fewer.",
         {"auto", "tensor", "channel", "group"});
  option("group-size", &defaults_.group_size,
         "Consecutive inputs that share a scale, with granularity 'group'.");
  option("scales", &defaults_.scales, "The type of scales; 'auto' is f16 for groups and f32 otherwise.",
         {"auto", "f32", "f16"});
  option(
      "range", &defaults_.range,
      "Symmetric codes from -(2^(b-1)-1) (restricted) or from -2^(b-1) with scales of either sign (full), or "
      "whichever errs less for each scale.",
      {"best", "full", "restricted"});
  option(
      "method", &defaults_.method,
      "How codes and scales are found: 'rtn' from the range, 'lsq' by least squares, weighted by the inputs "
      "where there are calibration samples, 'hqq' by half-quadratic optimization, 'smooth' and 'awq' from "
      "the range and by least squares after channels were scaled, 'gptq' so that the layer's outputs on "
      "calibration samples are kept, 'smooth+gptq' and 'awq+gptq' so after channels were scaled.",
      WeightSettings::method_choices());
  option(
      "clip", &defaults_.clip,
      "How outliers are cut off before the range is taken: none, percentile:P, mse, or kl; or error, by what "
      "the layer's outputs on calibration samples lose.");
  option(
      "activations", &defaults_.activations,
      "What integer weights are multiplied with: 'none' leaves activations as they are, 'dynamic' rounds "
      "them to 8 bits per token, and per group where weights have groups, 'dynamic-token' per token alone, "
      "'dynamic-tensor' by DynamicQuantizeLinear's formula, 'static' by one scale for all tokens.",
      WeightSettings::activation_choices());
  option(
      "activation-codes", &defaults_.activation_codes,
      "The codes of static activations; 'auto' is int8, and uint8-asymmetric where no sample was negative.",
      WeightSettings::activation_code_choices());
  option("activation-clip", &defaults_.activation_clip,
         "How outliers of static activations are cut off: none, percentile:P, mse, or kl.");
  option("embeddings", &embeddings_,
         "The number format of embedding tables, those tied to the head included.", same_or);
  option("overrides", &overrides_,
         "Objects with 'pattern', a regular expression that is searched in tensor and node names, and any of "
         "the "
         "options above for the weights it is found in; where several match, the last wins.");
}

PassReport QuantizeWeights::run(Graph& graph, PassContext& context) {
  PassReport report;
  WeightOverrides overrides(overrides_);
  std::vector<std::pair<const Node*, std::string>> rejected;
  const std::vector<WeightSite> sites = find_weight_sites(graph, &rejected);
  bool any_codes = false;
  for (const auto& [node, reason] : rejected) context.explain_failure(report, *node, reason);
  std::map<Graph*, std::unique_ptr<Rewriter>> rewriters;
  for (const WeightSite& site : sites) {
    WeightSettings defaults = defaults_;
    if (site.is_embedding && embeddings_ != "same") defaults.weights = embeddings_;
    const WeightSettings settings = overrides.apply(defaults, site);
    // What the file holds quantized is quantized anew, unless it shall be kept. What this pass decided stays
    // decided.
    const bool decided = site.is_packed() || (site.is_quantized() && !site.value->is_constant());
    const bool kept = site.is_quantized() && settings.weights == "keep";
    if (kept && settings.activations != "none" && has_integer_codes(site)) {
      any_codes = true;
      if (change_activations(site, settings, rewriters[site.value->graph()])) ++report.changes;
      continue;
    }
    if (decided || kept) {
      context.explain_failure(report, *site.uses.front().node, "'", site.name,
                              "' is quantized or packed already");
      continue;
    }
    auto& rewriter = rewriters[site.value->graph()];
    if (!rewriter) rewriter = std::make_unique<Rewriter>(*site.value->graph());
    const Node* conversion =
        add_conversion(*rewriter, site, settings, context.samples != nullptr || context.table != nullptr);
    if (conversion == nullptr) continue;
    const bool integers = settings.weights.starts_with("int");
    for (const Use& use : site.uses) {
      rewriter->set_input(use.node, static_cast<size_t>(use.input), conversion->output());
      if (integers && is_product(*use.node)) mark_activations(*rewriter, use.node, settings);
    }
    ++report.changes;
  }
  overrides.check_all_matched(sites);
  if (defaults_.weights == "keep" && defaults_.activations != "none" && overrides_.empty() && !any_codes) {
    throw_error(ErrorCode::InvalidArgument,
                "activations are rounded where integer weights are multiplied with them, "
                "and the model holds none that could be kept");
  }
  for (auto& [each, rewriter] : rewriters) {
    if (rewriter) rewriter->commit();
  }
  return report;
}

}  // namespace quern::passes
