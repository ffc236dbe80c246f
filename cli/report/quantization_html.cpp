#include "cli/report/quantization_html.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/format.h"
#include "cli/report/page.h"
#include "cli/report/svg.h"
#include "ir/activation_scheme.h"
#include "ir/packed_tensor.h"
#include "ir/products.h"

namespace quern::cli::report {
namespace {

constexpr size_t kShown = 6;

// A weight's values in steps of their scales.
struct CodedWeight {
  std::string name;
  std::string format;
  double sqnr_db = INFINITY;
  double clipped = 0;  // share of the weights beyond the last code
  int64_t least = 0;   // codes, zero points subtracted where they are one for all
  int64_t most = 0;
  std::map<int64_t, int64_t> bins;  // by quarters of a step
};

std::optional<QuantizedTensor> codes_of(const Value& value) {
  std::optional<QuantizedTensor> codes;
  if (value.quantized() != nullptr) codes = *value.quantized();
  if (value.packed() != nullptr && value.packed()->spec().is_quantized())
    codes = unpack_quantized(*value.packed());
  if (codes && !is_integer(codes->scheme.code)) codes.reset();
  return codes;
}

std::optional<Tensor> floats_of(const Value& value) {
  if (value.tensor() != nullptr && is_floating(value.tensor()->dtype())) return *value.tensor();
  if (value.packed() != nullptr) return value.packed()->dequantize();
  return {};
}

CodedWeight describe_weight(const std::string& name, const Tensor& original, const QuantizedTensor& codes) {
  CodedWeight weight{.name = name, .format = to_string(codes.scheme)};
  const QuantScheme& scheme = codes.scheme;
  const int64_t rows = codes.shape()[0], cols = codes.shape()[1];
  const int64_t levels = int64_t{1} << scheme.code_bits();
  const std::vector<float> values = original.to_floats(), scales = codes.scales.to_floats();
  const std::vector<float> rounded = dequantize(codes).to_floats();
  const bool grouped = scheme.granularity == QuantScheme::Granularity::Group;
  const int64_t group = grouped ? scheme.group_size : cols, groups = (cols + group - 1) / group;
  weight.least = scheme.symmetric ? -levels / 2 : -levels;
  weight.most = scheme.symmetric ? levels / 2 - 1 : levels;
  double signal = 0, noise = 0;
  int64_t clipped = 0;
  for (int64_t i = 0; i < rows * cols; ++i) {
    const auto at = static_cast<size_t>(i);
    const double error = static_cast<double>(values[at]) - static_cast<double>(rounded[at]);
    signal += static_cast<double>(values[at]) * static_cast<double>(values[at]);
    noise += error * error;
    const size_t which = scheme.granularity == QuantScheme::Granularity::Tensor ? 0
                         : grouped ? static_cast<size_t>(i / cols * groups + i % cols / group)
                                   : static_cast<size_t>(i / cols);
    const double scale = std::abs(static_cast<double>(scales[which]));
    if (scale == 0) continue;
    // Half a step is what rounding does; beyond three quarters a code was missing.
    clipped += std::abs(error) > 0.75 * scale;
    const double steps = static_cast<double>(values[at]) / static_cast<double>(scales[which]);
    const double width = levels > 32 ? static_cast<double>(levels) / 64 : 0.25;
    ++weight.bins[static_cast<int64_t>(std::floor(
        std::clamp(steps, -1.5 * static_cast<double>(levels), 1.5 * static_cast<double>(levels)) / width))];
  }
  weight.sqnr_db = noise > 0 ? 10 * std::log10(signal / noise) : INFINITY;
  weight.clipped = static_cast<double>(clipped) / static_cast<double>(std::max<int64_t>(1, rows * cols));
  return weight;
}

std::string plot_of(const CodedWeight& weight) {
  const auto levels = static_cast<double>(weight.most - weight.least + 1);
  const double width = levels > 32 ? levels / 64 : 0.25;
  std::vector<Bar> bars;
  if (weight.bins.empty()) return "";
  for (int64_t b = weight.bins.begin()->first; b <= weight.bins.rbegin()->first; ++b) {
    const auto found = weight.bins.find(b);
    const auto count = static_cast<double>(found == weight.bins.end() ? 0 : found->second);
    bars.push_back({static_cast<double>(b) * width, static_cast<double>(b + 1) * width, count,
                    format_grouped(static_cast<int64_t>(count)) + " weights"});
  }
  return bar_plot(
      {.x_label = "weight / scale", .y_label = "weights"}, bars,
      {{static_cast<double>(weight.least), "least code"}, {static_cast<double>(weight.most), "largest"}});
}

std::string plot_of(const calibrate::Observer& seen, const ActivationScheme& scheme) {
  const calibrate::MagnitudeHistogram& histogram = seen.histogram();
  constexpr int kBars = 60;
  const double low = std::min(0.0F, seen.min()), high = std::max(0.0F, seen.max());
  const double width = (high - low) / kBars;
  if (!(width > 0)) return "";
  std::vector<double> counts(kBars);
  for (const auto& [bin, count] : histogram.counts()) {
    const double at = calibrate::MagnitudeHistogram::middle(bin);
    counts[static_cast<size_t>(std::clamp<int>(static_cast<int>((at - low) / width), 0, kBars - 1))] +=
        static_cast<double>(count);
  }
  std::vector<Bar> bars;
  for (int i = 0; i < kBars; ++i) {
    // Tails of a few in a million are what clipping is about: a linear scale would hide them.
    bars.push_back({low + i * width, low + (i + 1) * width, std::log10(1 + counts[static_cast<size_t>(i)]),
                    format_grouped(static_cast<int64_t>(counts[static_cast<size_t>(i)])) + " values"});
  }
  std::vector<Mark> marks = {{histogram.magnitude_at(0.999), "99.9%"},
                             {histogram.least_error_limit(8), "mse"},
                             {histogram.entropy_limit(8), "kl"}};
  std::erase_if(marks, [&](const Mark& mark) { return mark.x > high; });
  if (scheme.kind == ActivationScheme::Kind::Static) {
    marks.push_back({scheme.scale * static_cast<float>(scheme.highest), "chosen"});
    marks.push_back({scheme.scale * static_cast<float>(scheme.lowest), "chosen"});
  }
  return bar_plot({.x_label = "activation", .y_label = "log10(1 + values)"}, bars, marks);
}

}  // namespace

std::string weight_histograms(const Graph& original, const Graph& candidate) {
  std::map<std::string, const Value*> originals;
  for (const Value* value : original.constants()) originals[value->name()] = value;
  std::vector<CodedWeight> weights;
  for (const Value* value : candidate.constants()) {
    const auto found = originals.find(value->name());
    const std::optional<QuantizedTensor> codes = codes_of(*value);
    if (!codes || found == originals.end() || codes->shape().size() != 2) continue;
    const std::optional<Tensor> floats = floats_of(*found->second);
    if (floats && floats->shape() == codes->shape())
      weights.push_back(describe_weight(value->name(), *floats, *codes));
  }
  if (weights.empty()) return "";
  std::stable_sort(weights.begin(), weights.end(),
                   [](const CodedWeight& a, const CodedWeight& b) { return a.sqnr_db < b.sqnr_db; });
  std::string text =
      "<h2>Weights and their codes</h2>\n<p class=\"soft\">The weights with the lowest SQNR, in steps of "
      "their scales; outside of the marks there is no code.</p>\n<div class=\"figures\">";
  for (size_t i = 0; i < std::min(kShown, weights.size()); ++i) {
    const CodedWeight& weight = weights[i];
    text += figure(escape(weight.name),
                   escape(weight.format) + ", SQNR " + format_fixed(weight.sqnr_db, 1) + " dB, " +
                       format_percent(weight.clipped, 2) + " farther than 3/4 step from their code",
                   plot_of(weight));
  }
  return text + "</div>\n";
}

std::string activation_histograms(const calibrate::CalibrationTable& table, const Graph& candidate) {
  std::map<std::string, ActivationScheme> schemes;
  for (const Node* node : candidate.nodes()) {
    if (is_product(*node)) schemes[node->input(0)->name()] = activation_scheme(*node);
  }
  // How many times farther the outliers reach than 99.9% do.
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [name, seen] : table.tensors) {
    const double most = seen.rows() == 0 ? 0 : seen.histogram().magnitude_at(0.999);
    if (most > 0) order.emplace_back(static_cast<double>(std::max(seen.max(), -seen.min())) / most, name);
  }
  if (order.empty()) return "";
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text =
      "<h2>Activations</h2>\n<p class=\"soft\">Inputs of products whose outliers reach farthest, and the "
      "limits of the rules that cut outliers off.</p>\n<div class=\"figures\">";
  for (size_t i = 0; i < std::min(kShown, order.size()); ++i) {
    const auto& [reach, name] = order[i];
    text +=
        figure(escape(name), "the largest is " + format_fixed(reach, 1) + " times what 99.9% stay below",
               plot_of(table.tensors.at(name), schemes.contains(name) ? schemes[name] : ActivationScheme{}));
  }
  return text + "</div>\n";
}

std::string sensitivity_section(const std::string& json, const std::string& path) {
  const nlohmann::json object = nlohmann::json::parse(json, nullptr, false);
  const auto bad = [&] {
    throw_error(ErrorCode::BadData, "'", path, "' holds no figures of quern sensitivity (-o FILE.json)");
  };
  if (!object.is_object() || !object.contains("tensors") || !object["tensors"].is_array()) bad();
  struct Row {
    std::string name;
    double worst = 0;
    std::string cells;
  };
  std::vector<Row> rows;
  std::string head;
  try {
    for (const auto& tensor : object["tensors"]) {
      Row row{.name = tensor.at("name").get<std::string>()};
      head.clear();
      for (const auto& cost : tensor.at("costs")) {
        head += "<th>" + escape(cost.at("weights").get<std::string>()) + ", KL</th>";
        row.worst = std::max(row.worst, cost.at("kl").get<double>());
        row.cells += "<td>" + format_number(cost.at("kl").get<double>(), 3) + "</td>";
      }
      rows.push_back(std::move(row));
    }
  } catch (const nlohmann::json::exception&) {
    bad();
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.worst > b.worst; });
  constexpr size_t kRows = 12;
  std::string text =
      "<h2>Sensitivity</h2>\n<p class=\"soft\">What each weight alone costs the whole model in each "
      "format.</p>\n<table><tr><th>weight</th>" +
      head + "</tr>\n";
  for (size_t i = 0; i < std::min(kRows, rows.size()); ++i)
    text += "<tr><td>" + escape(rows[i].name) + "</td>" + rows[i].cells + "</tr>\n";
  return text + "</table>\n";
}

}  // namespace quern::cli::report
