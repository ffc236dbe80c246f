// The outcome of `quern validate`, and its three forms: a table, JSON, an HTML report.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "calibrate/compare.h"
#include "calibrate/compare_tensors.h"
#include "calibrate/layer_closeness.h"
#include "cli/console.h"
#include "cli/model_facts.h"
#include "passes/quantize/culprits.h"

namespace quern::cli {

struct ValidatedModel {
  std::string path;
  std::string format;  // "ONNX", "quern artifact"
  std::string digest;  // SHA-256 of its files; empty: not computed
  int64_t size_bytes = 0;
  ModelFacts facts;
  // Tokens per second; 0: not measured.
  double prefill_rate = 0;
  double decode_rate = 0;
};

// A limit that the user set.
struct Threshold {
  std::string option;  // "max-ppl-increase"
  std::string what;    // "perplexity increase"
  double limit = 0;
  double value = 0;
  bool at_least = false;                        // the value must reach the limit, not stay below it
  bool is_share = true;                         // shown as a percentage
  std::optional<calibrate::Interval> interval;  // of the value

  bool met() const { return at_least ? value >= limit : value <= limit; }
  // Whether the data leaves open on which side of the limit the value is.
  bool within_noise() const { return interval && interval->low <= limit && limit <= interval->high; }
};

struct Validation {
  ValidatedModel reference;
  ValidatedModel candidate;
  std::string data_path;
  std::string data_digest;
  int64_t data_tokens = 0;
  calibrate::Comparison comparison;                    // on token ids
  std::optional<calibrate::TensorComparison> tensors;  // on arrays; then `comparison` is empty
  std::vector<calibrate::LayerCloseness> layers;       // in the order of the model; empty: not asked for
  std::optional<passes::Culprits> culprits;
  std::vector<Threshold> thresholds;
  std::vector<std::string> warnings;
  std::vector<std::string> commands;  // that made the candidate, where it knows, and this report
  std::string recipe;                 // JSON of the recipe that made the candidate, where it knows
  std::string quantization_html;      // of the report: what codes make of weights and activations
  std::string machine;                // processor and threads
  std::string version;                // of quern

  bool is_language_model() const {
    return !tensors && comparison.kind == calibrate::ScoredModel::Kind::NextToken;
  }
  int64_t rows() const { return tensors ? tensors->samples : comparison.windows; }
  // Whether there are cosines of whole texts.
  bool has_pooled_outputs() const {
    return tensors && std::any_of(tensors->outputs.begin(), tensors->outputs.end(),
                                  [](const auto& output) { return output.pooled_cosine.has_value(); });
  }
  bool has_accuracy() const { return tensors ? tensors->labelled : comparison.labelled; }
  const calibrate::Figure& reference_accuracy() const {
    return tensors ? tensors->reference_accuracy : comparison.reference.accuracy;
  }
  const calibrate::Figure& candidate_accuracy() const {
    return tensors ? tensors->candidate_accuracy : comparison.candidate.accuracy;
  }
  bool passed() const;
};

// Keys: docs/cli.md, "validate".
nlohmann::ordered_json to_json(const Validation& validation);
std::string to_text(const Validation& validation);
// One self-contained page: no scripts, no network.
std::string to_html(const Validation& validation);

// "perplexity increase 0.12%, allowed 1%"
std::string describe(const Threshold& threshold);

}  // namespace quern::cli
