#include "cli/conversion.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/console.h"
#include "cli/format.h"
#include "cli/table.h"

namespace quern::cli {
namespace {

using nlohmann::ordered_json;

// Weights of one format together.
struct FormatSum {
  int64_t tensors = 0;
  int64_t elements = 0;
  int64_t bytes = 0;
  QuantizeError error;
  const passes::WeightResult* worst = nullptr;  // by SQNR
};

std::map<std::string, FormatSum> sums_of(const std::vector<passes::WeightResult>& weights) {
  std::map<std::string, FormatSum> sums;
  for (const passes::WeightResult& weight : weights) {
    FormatSum& sum = sums[weight.format];
    ++sum.tensors;
    sum.elements += element_count(weight.shape);
    sum.bytes += weight.bytes;
    sum.error.add(weight.error);
    if (sum.worst == nullptr || weight.error.sqnr_db() < sum.worst->error.sqnr_db()) sum.worst = &weight;
  }
  return sums;
}

std::string sqnr_text(double decibels) {
  return std::isfinite(decibels) ? format_fixed(decibels, 1) + " dB" : "exact";
}

std::string weights_text(const Conversion& conversion) {
  Table table({{"weights"},
               {"tensors", Align::Right},
               {"parameters", Align::Right},
               {"bits", Align::Right},
               {"SQNR", Align::Right},
               {"worst"}});
  for (const auto& [format, sum] : sums_of(conversion.weights)) {
    const double bits =
        8.0 * static_cast<double>(sum.bytes) / static_cast<double>(std::max<int64_t>(1, sum.elements));
    const bool exact = !std::isfinite(sum.error.sqnr_db());
    // Codes that came with the model, or from a method that found them by the error of outputs, were compared
    // with no floats here.
    const bool coded = exact && bits < 16;
    table.add_row({format, format_grouped(sum.tensors), format_count(static_cast<double>(sum.elements)),
                   format_fixed(bits, 2), coded ? "-" : sqnr_text(sum.error.sqnr_db()),
                   exact ? "" : sqnr_text(sum.worst->error.sqnr_db()) + " " + one_line(sum.worst->name)});
  }
  return table.empty() ? "" : "\n" + table.to_string();
}

std::string model_text(const Conversion& conversion) {
  const ModelFacts& facts = conversion.facts;
  const std::string parameters = format_count(static_cast<double>(facts.parameters)) + " parameters";
  if (!facts.decoder) return "plain graph, " + parameters;
  const DecoderFacts& decoder = *facts.decoder;
  return (decoder.family.empty() ? "decoder" : decoder.family + "-style decoder") + ", " +
         std::to_string(decoder.layers) + " layers, width " + std::to_string(decoder.hidden) + ", " +
         parameters;
}

std::map<std::string, int64_t> plain_operators(const ModelFacts& facts) {
  std::map<std::string, int64_t> plain = facts.operators;
  std::erase_if(plain, [](const auto& entry) { return is_canonical_operator(entry.first); });
  return plain;
}

// Some passes have a note on each weight: --json has them all.
std::string notes_text(const passes::PipelineReport& report) {
  constexpr size_t kShown = 6;
  std::string text;
  for (const passes::PassRun& run : report.runs) {
    const std::vector<std::string>& notes = run.report.notes;
    const size_t shown = notes.size() > kShown + 1 ? kShown : notes.size();
    for (size_t i = 0; i < shown; ++i) text += "  " + run.pass + ": " + one_line(notes[i]) + "\n";
    if (shown < notes.size()) {
      text += "  " + run.pass + concat(": and ", notes.size() - shown, " more, which --json shows\n");
    }
  }
  return text.empty() ? "" : "\n" + text;
}

}  // namespace

std::vector<std::string> warnings_of(const Conversion& conversion) {
  std::vector<std::string> warnings = conversion.contradictions;
  if (!conversion.recognised) {
    warnings.push_back("no decoder was recognised in '" + conversion.model_path +
                       "': it runs as a plain graph, without a cache (--explain-pass to-decoder says why)");
  }
  if (conversion.recognised && !conversion.has_tokenizer) {
    warnings.push_back("no tokenizer is beside '" + conversion.model_path +
                       "': the artifact takes and gives token ids alone (--tokenizer FILE puts one in)");
  }
  for (const std::string& group : conversion.report.unfinished_groups) {
    warnings.push_back("the passes of '" + group +
                       "' were still changing the graph when their rounds ran out");
  }
  return warnings;
}

std::string to_text(const Conversion& conversion) {
  const auto before = static_cast<double>(conversion.source_bytes);
  const auto after = static_cast<double>(conversion.artifact_bytes);
  const std::map<std::string, int64_t> plain = plain_operators(conversion.facts);
  std::string text = one_line(conversion.model_path) + " -> " + one_line(conversion.output_path) + "\n\n";
  text += format_pairs({{"model", model_text(conversion)},
                        {"size", format_bytes(before) + " -> " + format_bytes(after) + " (" +
                                     format_percent(after / std::max(1.0, before), 1) + ")"},
                        {"bits per weight", format_fixed(conversion.facts.bits_per_weight(), 2)},
                        {"stayed plain", plain.empty() ? "nothing" : wrap(operator_list(plain), 100, 17)},
                        {"time", format_seconds(conversion.seconds)}});
  return text + weights_text(conversion) + notes_text(conversion.report);
}

ordered_json to_json(const Conversion& conversion) {
  ordered_json object = {{"model", conversion.model_path},
                         {"output", conversion.output_path},
                         {"decoder", conversion.recognised},
                         {"source_bytes", conversion.source_bytes},
                         {"size_bytes", conversion.artifact_bytes},
                         {"parameters", conversion.facts.parameters},
                         {"bits_per_weight", conversion.facts.bits_per_weight()},
                         {"plain_operators", plain_operators(conversion.facts)},
                         {"seconds", conversion.seconds},
                         {"weights", ordered_json::array()}};
  for (const passes::WeightResult& weight : conversion.weights) {
    object["weights"].push_back(ordered_json(passes::to_json(weight)));
  }
  object["pipeline"] = ordered_json(conversion.report.to_json());
  object["warnings"] = warnings_of(conversion);
  return object;
}

}  // namespace quern::cli
