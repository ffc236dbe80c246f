#include "passes/quantize/sensitivity.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "calibrate/compare.h"
#include "calibrate/decoder_model.h"
#include "calibrate/remembered_model.h"
#include "ir/rewriter.h"
#include "passes/canonicalize/to_decoder.h"
#include "passes/weights/weight_sites.h"
#include "runtime/decoder/program.h"
#include "runtime/decoder/session.h"

namespace quern::passes {
namespace {

// Each sample is a document of its own, and a window.
calibrate::TokenData documents_of(const calibrate::Samples& samples) {
  calibrate::TokenData data{.source = samples.source, .digest = samples.digest};
  for (const auto& window : samples.windows) data.documents.push_back({.ids = window});
  return data;
}

// A decoder that is being scored, with all that it needs.
struct Scored {
  std::unique_ptr<runtime::Session> session;
  std::unique_ptr<calibrate::ScoredModel> model;

  Scored(const Graph& graph, int threads) {
    session = std::make_unique<runtime::Session>(runtime::Program::compile(graph),
                                                 runtime::SessionOptions{.threads = threads});
    model = calibrate::make_decoder_model(*session);
  }
};

// A weight in a format, and the bytes that it takes packed.
std::pair<Constant, int64_t> converted(const Tensor& weight, const WeightSettings& settings) {
  if (settings.is_quantized()) {
    const QuantizeOptions options = settings.quantize_options();
    const PackedSpec spec = PackedSpec::for_quantized(weight.shape(), options.scheme, options.scale_dtype);
    return {quantize(weight, options), spec.byte_size()};
  }
  const DType dtype = settings.float_dtype().value_or(weight.dtype());
  return {weight.cast(dtype), PackedSpec::for_float(weight.shape(), dtype).byte_size()};
}

}  // namespace

std::vector<TensorSensitivity> measure_sensitivity(const Graph& decoder, const calibrate::Samples& samples,
                                                   const SensitivityOptions& options) {
  if (!is_decoder(decoder)) {
    throw_error(
        ErrorCode::Unsupported,
        "sensitivity is measured on next-token distributions, and this graph is no decoder that quern "
        "recognises");
  }
  const std::vector<std::string>& known = WeightSettings::weight_choices();
  for (const std::string& format : options.formats) {
    if (std::find(known.begin(), known.end(), format) == known.end())
      throw_error(ErrorCode::InvalidArgument, "'", format, "' is no number format of weights");
  }
  const std::unique_ptr<Graph> trial = decoder.clone();
  const calibrate::TokenData data = documents_of(samples);
  Scored original(*trial, options.threads);
  calibrate::RememberedModel reference(*original.model);
  calibrate::CompareOptions compare{.protocol = {.context = samples.options.context},
                                    .threads = options.threads};
  std::vector<TensorSensitivity> found;
  const std::vector<WeightSite> sites = find_weight_sites(*trial);
  for (size_t i = 0; i < sites.size(); ++i) {
    const WeightSite& site = sites[i];
    if (site.value->tensor() == nullptr) continue;
    const Tensor weight = site.value->tensor()->cast(DType::F32);
    TensorSensitivity tensor{.name = site.name, .parameters = weight.size()};
    for (size_t f = 0; f < options.formats.size(); ++f) {
      if (options.progress) {
        options.progress(
            "'" + site.name + "' as " + options.formats[f],
            (static_cast<double>(i) + static_cast<double>(f) / static_cast<double>(options.formats.size())) /
                static_cast<double>(sites.size()));
      }
      WeightSettings settings = options.settings;
      settings.weights = options.formats[f];
      auto [constant, bytes] = converted(weight, settings);
      Rewriter rewriter(*trial);
      rewriter.set_constant(site.value, std::move(constant));
      rewriter.commit();
      Scored candidate(*trial, options.threads);
      const calibrate::Comparison comparison = calibrate::compare(reference, *candidate.model, data, compare);
      tensor.costs.push_back(
          {settings.weights, bytes, comparison.agreement.kl_mean, comparison.perplexity_increase.value});
    }
    Rewriter rewriter(*trial);
    rewriter.set_constant(site.value, weight);
    rewriter.commit();
    std::stable_sort(tensor.costs.begin(), tensor.costs.end(),
                     [](const FormatCost& a, const FormatCost& b) { return a.bytes < b.bytes; });
    found.push_back(std::move(tensor));
  }
  return found;
}

std::vector<size_t> assign_formats(const std::vector<TensorSensitivity>& tensors, int64_t bytes) {
  std::vector<size_t> choice(tensors.size());
  int64_t used = 0;
  for (const TensorSensitivity& tensor : tensors) used += tensor.costs.front().bytes;
  if (used > bytes) {
    throw_error(ErrorCode::InvalidArgument, "the weights take ", used,
                " bytes in the smallest formats, more than ", "the ", bytes, " that they may take");
  }
  for (;;) {
    double best_gain = 0;
    size_t best_tensor = 0;
    size_t best_format = 0;
    for (size_t t = 0; t < tensors.size(); ++t) {
      const std::vector<FormatCost>& costs = tensors[t].costs;
      const FormatCost& now = costs[choice[t]];
      for (size_t f = choice[t] + 1; f < costs.size(); ++f) {
        const int64_t more = costs[f].bytes - now.bytes;
        if (used + more > bytes) break;
        const double gain = (now.kl - costs[f].kl) / static_cast<double>(std::max<int64_t>(1, more));
        if (gain <= best_gain) continue;
        best_gain = gain;
        best_tensor = t;
        best_format = f;
      }
    }
    if (best_gain <= 0) return choice;
    used +=
        tensors[best_tensor].costs[best_format].bytes - tensors[best_tensor].costs[choice[best_tensor]].bytes;
    choice[best_tensor] = best_format;
  }
}

nlohmann::json overrides_of(const std::vector<TensorSensitivity>& tensors,
                            const std::vector<size_t>& choice) {
  nlohmann::json overrides = nlohmann::json::array();
  for (size_t t = 0; t < tensors.size(); ++t) {
    std::string pattern = "^";
    for (const char c : tensors[t].name) {
      if (std::string_view("^$\\.*+?()[]{}|").find(c) != std::string_view::npos) pattern += '\\';
      pattern += c;
    }
    overrides.push_back({{"pattern", pattern + "$"}, {"weights", tensors[t].costs[choice[t]].weights}});
  }
  return overrides;
}

}  // namespace quern::passes
