#include "cli/diagnosis.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "calibrate/samples.h"
#include "cli/format.h"
#include "cli/progress.h"
#include "cli/report/svg.h"
#include "cli/table.h"

namespace quern::cli {
namespace {

using calibrate::LayerCloseness;
using nlohmann::ordered_json;

constexpr size_t kShown = 10;

// The first windows, so that what is diagnosed is what was validated.
calibrate::Samples first_windows(const calibrate::TokenData& data, int64_t context, int64_t most) {
  calibrate::Samples all = calibrate::draw_samples(data, {.samples = 1'000'000'000, .context = context});
  all.windows.resize(std::min(all.windows.size(), static_cast<size_t>(most)));
  return all;
}

std::vector<LayerCloseness> worst_first(std::vector<LayerCloseness> layers) {
  std::stable_sort(layers.begin(), layers.end(),
                   [](const LayerCloseness& a, const LayerCloseness& b) { return a.sqnr_db < b.sqnr_db; });
  return layers;
}

// Error that was there before a layer is not its own: the layer whose SQNR falls most below that of the one
// before.
const LayerCloseness* steepest_fall(const std::vector<LayerCloseness>& layers) {
  const LayerCloseness* worst = nullptr;
  double most = 3;  // dB, half the power: less is nothing to speak of
  for (size_t i = 1; i < layers.size(); ++i) {
    const double fall = layers[i - 1].sqnr_db - layers[i].sqnr_db;
    if (!(fall > most)) continue;
    most = fall;
    worst = &layers[i];
  }
  return worst;
}

std::string hint(const Validation& v) {
  const LayerCloseness* worst = steepest_fall(v.layers);
  if (worst == nullptr) return {};
  return "The error grows most before '" + worst->name +
         "': try --method gptq with --calibration-data, or more bits for the weights before it (--override).";
}

std::string culprits_summary(const passes::Culprits& culprits) {
  if (culprits.met_already) return "The thresholds are met on these windows: there is no culprit.";
  if (!culprits.found) {
    return "The thresholds are missed even with all weights as in the original: activations, or the data, "
           "are to "
           "blame.";
  }
  return concat("With ", culprits.names.size(), culprits.names.size() == 1 ? " weight" : " weights",
                " as in the original the thresholds are met: KL ", format_number(culprits.kl, 3),
                ", perplexity ", format_signed_percent(culprits.perplexity_increase), ".");
}

}  // namespace

void declare_diagnosis_options(OptionSet& options) {
  options.section("Diagnosis (of decoders, on the first windows)")
      .flag("layers", "SQNR and cosine of the input of every product, the worst first")
      .flag("find-culprit",
            "the fewest weights whose restoration to the original's meets --max-kl and --max-ppl-increase")
      .integer("diagnosis-windows", "N", {1, 1e9}, "windows for the diagnosis", 16);
}

void diagnose(const Arguments& arguments, const LoadedModel& reference, const LoadedModel& candidate,
              const calibrate::TokenData& data, Validation& validation, Console& console) {
  if (!arguments.flag("layers") && !arguments.flag("find-culprit")) return;
  if (!reference.is_decoder() || !candidate.is_decoder())
    throw UsageError("--layers and --find-culprit are for decoders that quern recognises");
  const calibrate::Samples samples =
      first_windows(data, validation.comparison.protocol.context, arguments.integer_of("diagnosis-windows"));
  const int threads = static_cast<int>(arguments.integer("threads").value_or(0));
  if (arguments.flag("layers")) {
    Progress progress(console, "layers", static_cast<int64_t>(samples.windows.size()), "windows");
    validation.layers = calibrate::compare_layers(
        *reference.file.graph, *candidate.file.graph, samples,
        {.threads = threads, .progress = [&](int64_t done, int64_t) { progress.update(done); }});
  }
  if (!arguments.flag("find-culprit")) return;
  passes::CulpritOptions options;
  options.threads = threads;
  options.max_kl = arguments.number("max-kl").value_or(-1);
  options.max_perplexity_increase = arguments.number("max-ppl-increase").value_or(-1);
  if (options.max_kl < 0 && options.max_perplexity_increase < 0)
    throw UsageError("--find-culprit needs to know what is to be met: --max-kl or --max-ppl-increase");
  Progress progress(console, "culprits", 1000, kPerMille);
  options.progress = [&](const std::string& what, double fraction) {
    progress.describe(what);
    progress.update(static_cast<int64_t>(fraction * 1000));
  };
  validation.culprits = passes::find_culprits(*reference.file.graph, *candidate.file.graph, samples, options);
}

void warn_of_calibration_data(const LoadedModel& candidate, Validation& validation) {
  // Every option stands in the recipe; a digest can hardly be anything else's.
  if (validation.data_digest.empty()) return;
  if (candidate.file.recipe.find(validation.data_digest) == std::string::npos) return;
  validation.warnings.push_back(
      "the candidate was calibrated with this very data: its figures flatter it; validate with other text");
}

std::string diagnosis_text(const Validation& v) {
  std::string text;
  if (!v.layers.empty()) {
    Table table({{"worst activations"}, {"read by"}, {"SQNR, dB", Align::Right}, {"cosine", Align::Right}});
    const std::vector<LayerCloseness> sorted = worst_first(v.layers);
    for (size_t i = 0; i < std::min(kShown, sorted.size()); ++i) {
      table.add_row({one_line(sorted[i].name), one_line(sorted[i].reader), format_fixed(sorted[i].sqnr_db, 1),
                     format_number(sorted[i].cosine, 6)});
    }
    text += "\n" + table.to_string();
    if (const std::string advice = hint(v); !advice.empty()) text += wrap(one_line(advice), 100, 0) + "\n";
  }
  if (v.culprits) {
    text += "\n" + wrap(culprits_summary(*v.culprits), 100, 0) + "\n";
    for (size_t i = 0; i < v.culprits->names.size(); ++i) {
      text += "  " + one_line(v.culprits->names[i]) + ", read by " + one_line(v.culprits->nodes[i]) + "\n";
    }
  }
  return text;
}

void add_diagnosis(ordered_json& object, const Validation& v) {
  if (!v.layers.empty()) {
    object["layers"] = ordered_json::array();
    for (const LayerCloseness& layer : v.layers) {
      object["layers"].push_back(
          {{"name", layer.name},
           {"reader", layer.reader},
           {"sqnr_db", std::isfinite(layer.sqnr_db) ? ordered_json(layer.sqnr_db) : ordered_json(nullptr)},
           {"cosine", layer.cosine}});
    }
  }
  if (v.culprits) {
    object["culprits"] = {{"met_already", v.culprits->met_already},
                          {"found", v.culprits->found},
                          {"names", v.culprits->names},
                          {"nodes", v.culprits->nodes},
                          {"kl", v.culprits->kl},
                          {"perplexity_increase", v.culprits->perplexity_increase}};
  }
}

std::string diagnosis_html(const Validation& v) {
  std::string text;
  if (!v.layers.empty()) {
    text += "<h2>Layer by layer</h2>\n";
    std::vector<std::pair<double, double>> points;
    for (size_t i = 0; i < v.layers.size(); ++i) {
      if (std::isfinite(v.layers[i].sqnr_db))
        points.emplace_back(static_cast<double>(i), v.layers[i].sqnr_db);
    }
    if (points.size() > 1) {
      text +=
          "<figure><figcaption>Where the error comes in<span>SQNR of the input of each product, from the "
          "first "
          "layer to the head; a fall is the work of what is before it</span></figcaption>\n" +
          report::line_plot({.x_label = "product, in the order of the model", .y_label = "SQNR, dB"},
                            {{"SQNR", "b", points}}) +
          "</figure>\n";
    }
    text += "<table><tr><th>worst activations</th><th>read by</th><th>SQNR, dB</th><th>cosine</th></tr>\n";
    const std::vector<LayerCloseness> sorted = worst_first(v.layers);
    for (size_t i = 0; i < std::min(kShown, sorted.size()); ++i) {
      text += "<tr><td>" + report::escape(sorted[i].name) + "</td><td>" + report::escape(sorted[i].reader) +
              "</td><td>" + format_fixed(sorted[i].sqnr_db, 1) + "</td><td>" +
              format_number(sorted[i].cosine, 6) + "</td></tr>\n";
    }
    text += "</table>\n";
    if (const std::string advice = hint(v); !advice.empty())
      text += "<p>" + report::escape(advice) + "</p>\n";
  }
  if (v.culprits) {
    text += "<h2>Culprits</h2>\n<p>" + report::escape(culprits_summary(*v.culprits)) + "</p>\n<ul>\n";
    for (size_t i = 0; i < v.culprits->names.size(); ++i) {
      text += "<li>" + report::escape(v.culprits->names[i]) + ", read by " +
              report::escape(v.culprits->nodes[i]) + "</li>\n";
    }
    text += "</ul>\n";
  }
  return text;
}

}  // namespace quern::cli
