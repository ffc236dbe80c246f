#include <algorithm>
#include <cmath>

#include "cli/diagnosis.h"
#include "cli/format.h"
#include "cli/table.h"
#include "cli/validation.h"

namespace quern::cli {
namespace {

std::string ratio(double candidate, double reference) {
  return reference > 0 && candidate > 0 ? format_fixed(candidate / reference, 2) + "x" : "";
}

std::string rate(double tokens_per_second) {
  return tokens_per_second > 0 ? format_grouped(std::llround(tokens_per_second)) : "-";
}

std::string with_interval(const std::string& text, const std::optional<calibrate::Interval>& interval) {
  if (!interval) return text;
  return text + " (95%: " + format_signed_percent(interval->low) + " to " +
         format_signed_percent(interval->high) + ")";
}

Table model_table(const Validation& validation) {
  const ValidatedModel& reference = validation.reference;
  const ValidatedModel& candidate = validation.candidate;
  const calibrate::Comparison& comparison = validation.comparison;
  Table table({{""}, {"original", Align::Right}, {"candidate", Align::Right}, {"change"}});
  const auto size_ratio = static_cast<double>(candidate.size_bytes) /
                          static_cast<double>(std::max<int64_t>(1, reference.size_bytes));
  table.add_row({"size", format_bytes(static_cast<double>(reference.size_bytes)),
                 format_bytes(static_cast<double>(candidate.size_bytes)),
                 format_signed_percent(size_ratio - 1, 1)});
  table.add_row({"bits per weight", format_fixed(reference.facts.bits_per_weight(), 2),
                 format_fixed(candidate.facts.bits_per_weight(), 2)});
  if (validation.is_language_model()) {
    table.add_row({"perplexity", format_number(comparison.reference.perplexity.value, 5),
                   format_number(comparison.candidate.perplexity.value, 5),
                   with_interval(format_signed_percent(comparison.perplexity_increase.value),
                                 comparison.perplexity_increase.interval)});
  }
  if (validation.has_accuracy()) {
    const double before = validation.reference_accuracy().value;
    const double after = validation.candidate_accuracy().value;
    table.add_row(
        {"accuracy", format_percent(before), format_percent(after), format_signed_percent(after - before)});
  }
  if (reference.prefill_rate > 0 || candidate.prefill_rate > 0) {
    table.add_row({"tokens/s, prefill", rate(reference.prefill_rate), rate(candidate.prefill_rate),
                   ratio(candidate.prefill_rate, reference.prefill_rate)});
  }
  if (reference.decode_rate > 0 || candidate.decode_rate > 0) {
    table.add_row({"tokens/s, decode", rate(reference.decode_rate), rate(candidate.decode_rate),
                   ratio(candidate.decode_rate, reference.decode_rate)});
  }
  return table;
}

std::string agreement_text(const Validation& validation) {
  const calibrate::Agreement& agreement = validation.comparison.agreement;
  return format_pairs({{"KL divergence", "mean " + format_number(agreement.kl_mean, 3) + ", median " +
                                             format_number(agreement.kl_median, 3) + ", 99% " +
                                             format_number(agreement.kl_p99, 3) + ", max " +
                                             format_number(agreement.kl_max, 3) + " nats"},
                       {"top-1 agreement", format_percent(agreement.top1.value)},
                       {"top-5 agreement", format_percent(agreement.top5.value)}});
}

std::string outputs_text(const Validation& validation) {
  std::vector<Table::Column> columns = {
      {"output"}, {"max error", Align::Right}, {"SQNR, dB", Align::Right}, {"cosine", Align::Right}};
  if (validation.has_pooled_outputs()) {
    columns.push_back({"texts: mean", Align::Right});
    columns.push_back({"lowest", Align::Right});
  }
  Table table(columns);
  for (const calibrate::OutputCloseness& output : validation.tensors->outputs) {
    std::vector<std::string> row = {one_line(output.name), format_number(output.max_abs_error, 3),
                                    format_fixed(output.sqnr_db, 1), format_number(output.cosine, 6)};
    if (output.pooled_cosine) {
      row.push_back(format_number(output.pooled_cosine->mean, 6));
      row.push_back(format_number(output.pooled_cosine->least, 6));
    }
    table.add_row(row);
  }
  return table.to_string();
}

std::string headline(const Validation& validation) {
  const calibrate::Comparison& comparison = validation.comparison;
  std::string text = one_line(validation.candidate.path) + " against " + one_line(validation.reference.path) +
                     " on " + one_line(validation.data_path) + ": ";
  if (validation.is_language_model()) {
    return text + format_grouped(comparison.scored) + " tokens scored in " +
           format_grouped(comparison.windows) + " windows of up to " +
           std::to_string(comparison.protocol.context);
  }
  return text + format_grouped(validation.rows()) + " rows";
}

}  // namespace

bool Validation::passed() const {
  return std::all_of(thresholds.begin(), thresholds.end(), [](const Threshold& each) { return each.met(); });
}

std::string describe(const Threshold& threshold) {
  const auto shown = [&](double value) {
    return threshold.is_share ? format_number(value * 100, 3) + "%" : format_number(value, 3);
  };
  return threshold.what + " " + shown(threshold.value) + (threshold.at_least ? ", at least " : ", at most ") +
         shown(threshold.limit) + (threshold.at_least ? " wanted" : " allowed");
}

std::string to_text(const Validation& validation) {
  std::string text = headline(validation) + "\n\n" + model_table(validation).to_string() + "\n";
  text += validation.tensors ? outputs_text(validation) : agreement_text(validation);
  if (validation.is_language_model()) {
    text += "\n" + wrap("Protocol: " + validation.comparison.protocol.describe() + ".", 100, 0) + "\n";
  }
  text += diagnosis_text(validation);
  if (!validation.thresholds.empty()) text += "\n";
  for (const Threshold& threshold : validation.thresholds) {
    text += threshold.met() ? styled("ok", Style::Green, Stream::Out) + "      "
                            : styled("MISSED", Style::Red, Stream::Out) + "  ";
    text +=
        describe(threshold) + (threshold.within_noise() ? " (the data is too little to be sure)" : "") + "\n";
  }
  return text;
}

}  // namespace quern::cli
