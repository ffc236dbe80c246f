#include "cli/report/comparison_html.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "cli/format.h"
#include "cli/report/page.h"
#include "cli/report/svg.h"
#include "ir/error.h"

namespace quern::cli {
namespace {

using report::escape;

bool is_language(const ComparisonReport& report) {
  return report.candidates.front().comparison.kind == calibrate::ScoredModel::Kind::NextToken;
}

double change_of(const ComparisonReport& report, const ComparedModel& model) {
  const calibrate::Comparison& c = model.comparison;
  return is_language(report) ? c.perplexity_increase.value
                             : c.candidate.accuracy.value - c.reference.accuracy.value;
}

std::string hint_of(const ComparedModel& model) {
  const calibrate::Comparison& c = model.comparison;
  return concat(model.path, ": ", format_fixed(model.bits, 2), " bits per weight, KL ",
                format_number(c.agreement.kl_mean, 3), ", top-1 ", format_percent(c.agreement.top1.value));
}

std::string divergence_plot(const ComparisonReport& report) {
  constexpr double kLeast = 1e-9;  // below, it is the rounding of the comparison itself
  std::vector<report::Point> points;
  for (const ComparedModel& model : report.candidates) {
    points.push_back({static_cast<double>(model.bytes) / 1e6,
                      std::log10(std::max(model.comparison.agreement.kl_mean, kLeast)),
                      std::filesystem::path(model.path).stem().string(), hint_of(model)});
  }
  return report::scatter_plot(
      {.x_label = "file, MB", .y_label = "mean KL, nats", .width = 900, .height = 380, .log_y = true},
      points);
}

std::string change_plot(const ComparisonReport& report) {
  std::vector<report::Point> points;
  for (const ComparedModel& model : report.candidates) {
    const double change = change_of(report, model) * (is_language(report) ? 100 : -100);
    points.push_back({static_cast<double>(model.bytes) / 1e6, change,
                      std::filesystem::path(model.path).stem().string(), hint_of(model)});
  }
  return report::scatter_plot({.x_label = "file, MB",
                               .y_label = is_language(report) ? "perplexity, + %" : "accuracy lost, points",
                               .width = 900,
                               .height = 320},
                              points);
}

std::string table(const ComparisonReport& report) {
  const bool language = is_language(report);
  const calibrate::ModelScore& original = report.candidates.front().comparison.reference;
  const auto score = [&](const calibrate::ModelScore& model) {
    return language ? format_number(model.perplexity.value, 5) : format_percent(model.accuracy.value);
  };
  std::string text =
      concat("<table><tr><th>model</th><th>size</th><th>bits per weight</th><th>",
             language ? "perplexity" : "accuracy",
             "</th><th>change</th><th>KL mean</th><th>KL 99%</th><th>top-1</th></tr>\n<tr><td>",
             escape(report.original), "</td><td>", format_bytes(static_cast<double>(report.original_bytes)),
             "</td><td></td><td>", score(original), "</td><td></td><td></td><td></td><td></td></tr>\n");
  for (const ComparedModel& model : report.candidates) {
    const calibrate::Comparison& c = model.comparison;
    text +=
        concat("<tr><td>", escape(model.path), "</td><td>", format_bytes(static_cast<double>(model.bytes)),
               "</td><td>", format_fixed(model.bits, 2), "</td><td>", score(c.candidate), "</td><td>",
               format_signed_percent(change_of(report, model)), "</td><td>",
               format_number(c.agreement.kl_mean, 3), "</td><td>", format_number(c.agreement.kl_p99, 3),
               "</td><td>", format_percent(c.agreement.top1.value), "</td></tr>\n");
  }
  return text + "</table>\n";
}

std::string recipes(const ComparisonReport& report) {
  std::string text;
  for (const ComparedModel& model : report.candidates) {
    if (model.recipe.empty()) continue;
    text += "<details><summary>" + escape(model.path) + ": the recipe that made it</summary><pre>" +
            escape(model.recipe) + "</pre></details>\n";
  }
  return text.empty() ? "" : "<h2>Recipes</h2>\n" + text;
}

}  // namespace

std::string to_html(const ComparisonReport& report) {
  if (report.candidates.empty()) throw_error(ErrorCode::InvalidArgument, "a report of no candidates");
  const calibrate::Comparison& first = report.candidates.front().comparison;
  std::string text = "<h1>" + escape(report.original) +
                     "</h1>\n<p class=\"soft\">and what became of it, on " + escape(report.data) + "</p>\n";
  text +=
      "<h2>Accuracy against size</h2>\n" +
      report::figure("What a megabyte buys",
                     "mean KL divergence from the original; the line joins what nothing else beats in both",
                     divergence_plot(report)) +
      report::figure(is_language(report) ? "Perplexity" : "Accuracy", "lower is better", change_plot(report));
  text += "<h2>Candidates</h2>\n" + table(report) + report.sensitivity_html + recipes(report);
  text +=
      "<h2>Protocol</h2>\n<p>" +
      escape(is_language(report) ? first.protocol.describe() : std::string("each row scored on its own")) +
      "; " + format_grouped(is_language(report) ? first.scored : first.windows) +
      (is_language(report) ? " tokens" : " rows") +
      ". KL divergence of the candidate's distribution from the original's, in nats; top-1: how often both "
      "find "
      "the same most likely.</p>\n";
  return report::page("Comparison with " + report.original, text);
}

}  // namespace quern::cli
