#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/diagnosis.h"
#include "cli/validation.h"

namespace quern::cli {
namespace {

using nlohmann::ordered_json;

ordered_json interval_json(const std::optional<calibrate::Interval>& interval) {
  if (!interval) return nullptr;
  return {interval->low, interval->high};
}

void add_figure(ordered_json& object, const std::string& name, const calibrate::Figure& figure) {
  object[name] = figure.value;
  object[name + "_interval"] = interval_json(figure.interval);
}

ordered_json model_json(const ValidatedModel& model, const calibrate::ModelScore& score,
                        const Validation& validation) {
  ordered_json object = {{"path", model.path},
                         {"format", model.format},
                         {"sha256", model.digest},
                         {"size_bytes", model.size_bytes},
                         {"weight_bytes", model.facts.weight_bytes},
                         {"parameters", model.facts.parameters},
                         {"bits_per_weight", model.facts.bits_per_weight()},
                         {"weights", model.facts.formats()}};
  if (validation.is_language_model()) add_figure(object, "perplexity", score.perplexity);
  object["prefill_tokens_per_second"] =
      model.prefill_rate > 0 ? ordered_json(model.prefill_rate) : ordered_json();
  object["decode_tokens_per_second"] =
      model.decode_rate > 0 ? ordered_json(model.decode_rate) : ordered_json();
  return object;
}

void add_agreement(ordered_json& object, const Validation& validation) {
  const calibrate::Agreement& agreement = validation.comparison.agreement;
  if (validation.is_language_model())
    add_figure(object, "perplexity_increase", validation.comparison.perplexity_increase);
  object["kl"] = {{"mean", agreement.kl_mean},
                  {"median", agreement.kl_median},
                  {"p99", agreement.kl_p99},
                  {"max", agreement.kl_max},
                  {"mean_interval", interval_json(agreement.kl_interval)}};
  add_figure(object, "top1", agreement.top1);
  add_figure(object, "top5", agreement.top5);
}

ordered_json protocol_json(const Validation& validation) {
  const calibrate::Comparison& comparison = validation.comparison;
  if (!validation.is_language_model())
    return {{"description", "each row scored on its own"}, {"rows", validation.rows()}};
  return {{"description", comparison.protocol.describe()},
          {"context", comparison.protocol.context},
          {"stride", comparison.protocol.step()},
          {"opening_tokens", comparison.protocol.opening},
          {"windows", comparison.windows},
          {"tokens_scored", comparison.scored}};
}

ordered_json outputs_json(const Validation& validation) {
  ordered_json outputs = ordered_json::array();
  for (const calibrate::OutputCloseness& output : validation.tensors->outputs) {
    outputs.push_back({{"name", output.name},
                       {"max_abs_error", output.max_abs_error},
                       {"sqnr_db", output.sqnr_db},
                       {"cosine", output.cosine}});
    if (output.pooled_cosine) {
      outputs.back()["pooled_cosine"] = {{"mean", output.pooled_cosine->mean},
                                         {"min", output.pooled_cosine->least}};
    }
  }
  return outputs;
}

}  // namespace

ordered_json to_json(const Validation& validation) {
  const calibrate::Comparison& comparison = validation.comparison;
  ordered_json object = {{"reference", model_json(validation.reference, comparison.reference, validation)},
                         {"candidate", model_json(validation.candidate, comparison.candidate, validation)}};
  if (validation.has_accuracy()) {
    add_figure(object["reference"], "accuracy", validation.reference_accuracy());
    add_figure(object["candidate"], "accuracy", validation.candidate_accuracy());
  }
  if (validation.tensors) {
    object["outputs"] = outputs_json(validation);
    if (validation.has_accuracy()) add_figure(object, "top1", validation.tensors->agreement);
  } else {
    add_agreement(object, validation);
  }
  object["protocol"] = protocol_json(validation);
  object["data"] = {
      {"path", validation.data_path}, {"sha256", validation.data_digest}, {"tokens", validation.data_tokens}};
  object["thresholds"] = ordered_json::array();
  for (const Threshold& threshold : validation.thresholds) {
    object["thresholds"].push_back({{"option", threshold.option},
                                    {"limit", threshold.limit},
                                    {"value", threshold.value},
                                    {"met", threshold.met()},
                                    {"within_noise", threshold.within_noise()}});
  }
  add_diagnosis(object, validation);
  object["passed"] = validation.passed();
  object["warnings"] = validation.warnings;
  object["version"] = validation.version;
  return object;
}

}  // namespace quern::cli
