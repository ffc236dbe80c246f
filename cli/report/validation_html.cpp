#include <algorithm>
#include <cmath>

#include "cli/diagnosis.h"
#include "cli/format.h"
#include "cli/report/page.h"
#include "cli/report/svg.h"
#include "cli/validation.h"
#include "ir/error.h"

namespace quern::cli {
namespace {

using report::escape;
using report::figure;

std::string interval_note(const std::optional<calibrate::Interval>& interval, std::string (*shown)(double)) {
  if (!interval) return "";
  return "<small>" + shown(interval->low) + " to " + shown(interval->high) + "</small>";
}

std::string perplexity_text(double value) {
  return format_number(value, 5);
}
std::string percent_text(double value) {
  return format_percent(value);
}
std::string signed_text(double value) {
  return format_signed_percent(value);
}
std::string kl_text(double value) {
  return format_number(value, 3);
}

std::string tile(const std::string& value, const std::string& what) {
  return "<div class=\"tile\"><b>" + value + "</b><span>" + what + "</span></div>";
}

std::string tiles(const Validation& v) {
  const calibrate::Comparison& c = v.comparison;
  const double share = static_cast<double>(v.candidate.size_bytes) /
                       static_cast<double>(std::max<int64_t>(1, v.reference.size_bytes));
  std::string text = tile(format_percent(share, 1), "of the original's size");
  if (v.tensors) {
    double worst = INFINITY;
    for (const calibrate::OutputCloseness& output : v.tensors->outputs)
      worst = std::min(worst, output.sqnr_db);
    return text + tile(format_fixed(worst, 1) + " dB", "SQNR of the worst output");
  }
  if (v.is_language_model()) text += tile(format_signed_percent(c.perplexity_increase.value), "perplexity");
  if (v.has_accuracy()) {
    text += tile(format_signed_percent(v.candidate_accuracy().value - v.reference_accuracy().value),
                 "accuracy, in points");
  }
  text += tile(format_number(c.agreement.kl_mean, 3), "mean KL, nats");
  text += tile(format_percent(c.agreement.top1.value), "top-1 agreement");
  if (v.candidate.decode_rate > 0 && v.reference.decode_rate > 0) {
    text += tile(format_fixed(v.candidate.decode_rate / v.reference.decode_rate, 2) + "×", "decoding speed");
  }
  return text;
}

std::string row(const std::string& name, const std::string& a, const std::string& b,
                const std::string& change, const std::string& last = "") {
  return "<tr><td>" + name + "</td><td>" + a + "</td><td>" + b + "</td><td>" + change + "</td>" +
         (last.empty() ? "" : "<td>" + last + "</td>") + "</tr>\n";
}

std::string rate_row(const std::string& name, double a, double b) {
  if (a <= 0 && b <= 0) return "";
  const auto shown = [](double rate) {
    return rate > 0 ? format_grouped(std::llround(rate)) : std::string("–");
  };
  return row(name, shown(a), shown(b), a > 0 && b > 0 ? format_fixed(b / a, 2) + "×" : "");
}

std::string summary_table(const Validation& v) {
  const calibrate::Comparison& c = v.comparison;
  const auto bytes = [](int64_t count) {
    return format_bytes(static_cast<double>(count)) + "<small>" + format_grouped(count) + " bytes</small>";
  };
  const double share = static_cast<double>(v.candidate.size_bytes) /
                       static_cast<double>(std::max<int64_t>(1, v.reference.size_bytes));
  std::string text = "<table><tr><th></th><th>original</th><th>candidate</th><th>change</th></tr>\n";
  text += row("Size of the files", bytes(v.reference.size_bytes), bytes(v.candidate.size_bytes),
              format_signed_percent(share - 1, 1));
  text += row("Weights", escape(v.reference.facts.formats()), escape(v.candidate.facts.formats()), "");
  text += row("Bits per weight", format_fixed(v.reference.facts.bits_per_weight(), 2),
              format_fixed(v.candidate.facts.bits_per_weight(), 2), "");
  if (v.is_language_model()) {
    text += row("Perplexity",
                perplexity_text(c.reference.perplexity.value) +
                    interval_note(c.reference.perplexity.interval, perplexity_text),
                perplexity_text(c.candidate.perplexity.value) +
                    interval_note(c.candidate.perplexity.interval, perplexity_text),
                signed_text(c.perplexity_increase.value) +
                    interval_note(c.perplexity_increase.interval, signed_text));
  }
  if (v.has_accuracy()) {
    text += row("Accuracy",
                percent_text(v.reference_accuracy().value) +
                    interval_note(v.reference_accuracy().interval, percent_text),
                percent_text(v.candidate_accuracy().value) +
                    interval_note(v.candidate_accuracy().interval, percent_text),
                signed_text(v.candidate_accuracy().value - v.reference_accuracy().value));
  }
  text += rate_row("Prefill, tokens per second", v.reference.prefill_rate, v.candidate.prefill_rate);
  text += rate_row("Decode, tokens per second", v.reference.decode_rate, v.candidate.decode_rate);
  return text + "</table>\n";
}

std::string agreement_table(const Validation& v) {
  const calibrate::Agreement& a = v.comparison.agreement;
  return "<table><tr><th>KL divergence, nats</th><th>mean</th><th>median</th><th>99%</th><th>largest</th>"
         "<th>top-1 agreement</th><th>top-5 agreement</th></tr>\n<tr><td>original to candidate</td><td>" +
         kl_text(a.kl_mean) + interval_note(a.kl_interval, kl_text) + "</td><td>" + kl_text(a.kl_median) +
         "</td><td>" + kl_text(a.kl_p99) + "</td><td>" + kl_text(a.kl_max) + "</td><td>" +
         percent_text(a.top1.value) + interval_note(a.top1.interval, percent_text) + "</td><td>" +
         percent_text(a.top5.value) + interval_note(a.top5.interval, percent_text) + "</td></tr></table>\n";
}

std::string outputs_table(const Validation& v) {
  std::string text =
      "<table><tr><th>output</th><th>largest error</th><th>SQNR, dB</th><th>cosine</th>"
      "<th>cosine of texts, mean and lowest</th></tr>\n";
  for (const calibrate::OutputCloseness& output : v.tensors->outputs) {
    const auto& pooled = output.pooled_cosine;
    text += row(escape(output.name), format_number(output.max_abs_error, 3), format_fixed(output.sqnr_db, 1),
                format_number(output.cosine, 6),
                pooled ? format_number(pooled->mean, 6) + ", " + format_number(pooled->least, 6) : "");
  }
  return text + "</table>\n";
}

// Below this a divergence is the rounding of the comparison itself.
constexpr double kLeastKl = 1e-9;

std::string kl_histogram(const Validation& v) {
  const calibrate::Agreement& agreement = v.comparison.agreement;
  std::vector<double> logs;
  for (const double kl : agreement.kls) logs.push_back(std::log10(std::max(kl, kLeastKl)));
  if (logs.empty() || agreement.kl_max <= kLeastKl) return "";
  const double low = std::floor(*std::min_element(logs.begin(), logs.end()));
  const double high =
      std::max(low + 1, std::ceil(std::min(3.0, *std::max_element(logs.begin(), logs.end()))));
  constexpr int kBins = 48;
  const std::vector<int64_t> counts = calibrate::histogram(logs, low, high, kBins);
  std::vector<report::Bar> bars;
  for (int i = 0; i < kBins; ++i) {
    const double from = low + (high - low) * i / kBins;
    const double to = low + (high - low) * (i + 1) / kBins;
    const int64_t count = counts[static_cast<size_t>(i)];
    bars.push_back({from, to, static_cast<double>(count),
                    format_grouped(count) + " positions from " + format_number(std::pow(10, from), 2) +
                        " to " + format_number(std::pow(10, to), 2)});
  }
  std::vector<report::Mark> marks;
  const auto mark = [&](double value, const char* name) {
    if (value > kLeastKl) marks.push_back({std::log10(value), concat(name, " ", format_number(value, 3))});
  };
  mark(agreement.kl_median, "median");
  mark(agreement.kl_mean, "mean");
  mark(agreement.kl_p99, "99%");
  const bool rows = !v.is_language_model();
  return report::bar_plot(
      {.x_label = "KL divergence, nats", .y_label = rows ? "rows" : "positions", .log_x = true}, bars, marks);
}

// Means of neighbours, so that no more than about `most` are left.
std::vector<std::pair<double, double>> thinned(const std::vector<double>& values, size_t most) {
  const size_t group = (values.size() + most - 1) / std::max<size_t>(1, most);
  std::vector<std::pair<double, double>> points;
  for (size_t i = 0; i < values.size(); i += group) {
    const size_t end = std::min(i + group, values.size());
    double sum = 0;
    for (size_t k = i; k < end; ++k) sum += values[k];
    points.emplace_back(static_cast<double>(i + end - 1) / 2, sum / static_cast<double>(end - i));
  }
  return points;
}

std::string kl_by_position(const Validation& v) {
  if (v.comparison.kl_by_position.size() < 8) return "";
  return report::line_plot({.x_label = "position in the window", .y_label = "mean KL, nats"},
                           {{"mean KL", "b", thinned(v.comparison.kl_by_position, 64)}});
}

std::string cost_by_window(const Validation& v) {
  const auto& windows = v.comparison.by_window;
  if (windows.size() < 4 || !v.is_language_model()) return "";
  std::vector<double> costs;
  for (const calibrate::WindowScore& window : windows)
    costs.push_back(window.candidate_nll - window.reference_nll);
  std::vector<report::Bar> bars;
  const std::vector<std::pair<double, double>> points = thinned(costs, 160);
  const double half = points.size() > 1 ? (points[1].first - points[0].first) / 2 : 0.5;
  for (const auto& [at, cost] : points) {
    bars.push_back({at - half, at + half, cost,
                    concat("window ", std::llround(at), ": ", format_number(cost, 2), " nats per token")});
  }
  return report::bar_plot(
      {.x_label = "window, in the order of the text", .y_label = "candidate − original, nats"}, bars);
}

report::Stack weights_of(const char* name, const ValidatedModel& model) {
  report::Stack stack{name, format_bytes(static_cast<double>(model.facts.weight_bytes)), {}};
  for (const TensorGroup& group : model.facts.groups) {
    const std::string bytes = format_bytes(static_cast<double>(group.bytes));
    stack.segments.push_back({group.name, static_cast<double>(group.bytes), group.name + ": " + bytes});
  }
  return stack;
}

std::string speed_plot(const Validation& v) {
  std::vector<report::Stack> stacks;
  const auto add = [&](const char* name, double rate, const char* what) {
    if (rate <= 0) return;
    stacks.push_back(
        {name,
         format_grouped(std::llround(rate)),
         {{what, rate, concat(what, ": ", format_grouped(std::llround(rate)), " tokens per second")}}});
  };
  add("original", v.reference.decode_rate, "decode");
  add("candidate", v.candidate.decode_rate, "decode");
  return stacks.empty() ? "" : report::stacked_plot(stacks);
}

std::string figures(const Validation& v) {
  std::string text;
  if (!v.tensors) {
    text += figure("How far apart the predictions are",
                   "KL divergence at each position; to the left is better", kl_histogram(v));
    text += figure("Does it grow with the context?", "mean KL divergence by position; flat is good",
                   kl_by_position(v));
    text += figure("Where in the text it costs", "increase of the negative log-likelihood per token",
                   cost_by_window(v));
  }
  text += figure(
      "Where the bytes are", "weights as stored, scales included",
      report::stacked_plot({weights_of("original", v.reference), weights_of("candidate", v.candidate)}));
  text += figure("Decoding speed", "tokens per second, one sequence", speed_plot(v));
  return "<div class=\"figures\">" + text + "</div>\n";
}

std::string weights_table(const Validation& v) {
  std::string text =
      "<table><tr><th>group</th><th>original</th><th>candidate</th><th>parameters</th><th>stored "
      "as</th></tr>\n";
  for (const TensorGroup& group : v.candidate.facts.groups) {
    std::string original = "–";
    for (const TensorGroup& other : v.reference.facts.groups) {
      if (other.name == group.name) original = format_bytes(static_cast<double>(other.bytes));
    }
    std::string formats;
    for (const auto& [format, bytes] : group.formats) formats += (formats.empty() ? "" : ", ") + format;
    text += "<tr><td>" + escape(group.name) + "</td><td>" + original + "</td><td>" +
            format_bytes(static_cast<double>(group.bytes)) + "</td><td>" + format_grouped(group.parameters) +
            "</td><td>" + escape(formats) + "</td></tr>\n";
  }
  return text + "</table>\n";
}

std::string verdict(const Validation& v) {
  if (v.thresholds.empty()) return "";
  std::string text = v.passed() ? "<p><span class=\"verdict ok\">passed</span></p>"
                                : "<p><span class=\"verdict bad\">missed</span></p>";
  for (const Threshold& threshold : v.thresholds) {
    text += concat(
        "<p class=\"", threshold.met() ? "ok" : "bad", "\">", threshold.met() ? "✓ " : "✗ ",
        escape(describe(threshold)),
        threshold.within_noise()
            ? " <span class=\"warn\">(the 95% interval holds both sides: score more data to be sure)</span>"
            : "",
        "</p>");
  }
  return text;
}

std::string term(const std::string& name, const std::string& text) {
  return text.empty() ? "" : "<dt>" + name + "</dt><dd>" + escape(text) + "</dd>\n";
}

std::string distribution_terms() {
  return term("KL divergence",
              "of the candidate's distribution from the original's, all logits, in double precision, in "
              "nats") +
         term("Agreement",
              "top-1: both find the same token most likely; top-5: the original's is among the candidate's "
              "five most likely");
}

std::string protocol(const Validation& v) {
  const calibrate::Comparison& c = v.comparison;
  std::string scored = format_grouped(v.rows()) + " rows";
  std::string how = "each row scored on its own";
  if (v.is_language_model()) {
    scored = format_grouped(c.scored) + " tokens in " + format_grouped(c.windows) + " windows";
    how = c.protocol.describe();
  }
  return "<h2>Protocol</h2>\n<dl>\n" +
         term("Original",
              v.reference.path + " (" + v.reference.format + ", SHA-256 " + v.reference.digest + ")") +
         term("Candidate",
              v.candidate.path + " (" + v.candidate.format + ", SHA-256 " + v.candidate.digest + ")") +
         term("Data", v.data_path + " (SHA-256 " + v.data_digest + ")") + term("Scored", scored) +
         term("Windows", how) + (v.tensors ? "" : distribution_terms()) +
         term("Intervals", "95%, bootstrap over windows, paired") + term("Machine", v.machine) +
         term("quern", v.version) + "</dl>\n";
}

std::string reproduce(const Validation& v) {
  std::string text = "<h2>To reproduce</h2>\n<pre>";
  for (const std::string& command : v.commands) text += escape(command) + "\n";
  text += "</pre>\n";
  if (!v.recipe.empty()) {
    text += "<details><summary>recipe.json: the recipe that made the candidate</summary><pre>" +
            escape(v.recipe) + "</pre></details>\n";
  }
  return text;
}

}  // namespace

std::string to_html(const Validation& v) {
  std::string text;
  text += "<h1>" + escape(v.candidate.path) + "</h1>\n<p class=\"soft\">against " + escape(v.reference.path) +
          ", on " + escape(v.data_path) + "</p>\n" + verdict(v);
  for (const std::string& warning : v.warnings) text += "<p class=\"warn\">" + escape(warning) + "</p>\n";
  text += "<div class=\"tiles\">" + tiles(v) + "</div>\n" + summary_table(v);
  text += !v.tensors ? "<h2>Agreement</h2>\n" + agreement_table(v) : "<h2>Outputs</h2>\n" + outputs_table(v);
  text += "<h2>In pictures</h2>\n" + figures(v) + diagnosis_html(v) + v.quantization_html +
          "<h2>Weights</h2>\n" + weights_table(v) + protocol(v) + reproduce(v);
  return report::page("Validation of " + v.candidate.path, text);
}

}  // namespace quern::cli
