#include "calibrate/encoder_exit_calibration.h"

#include "ir/error.h"
#include "runtime/generate/sampler.h"
#include "runtime/layers/blocks.h"
#include "runtime/layers/encoder_layers.h"
#include "runtime/layers/exit_confidence.h"

namespace quern::calibrate {

EncoderExitEvaluator::EncoderExitEvaluator(const Graph& graph, const runtime::ExitRule& rule,
                                           const Texts& texts, std::vector<int64_t> labels,
                                           const std::function<void(int64_t done)>& progress)
    : rule_(rule), labels_(std::move(labels)) {
  if (texts.empty()) throw_error(ErrorCode::BadData, "there are no texts to measure exits on");
  const runtime::EncoderLayers found = runtime::find_encoder_layers(graph);
  layers_ = found.layers();
  rule_.layers = runtime::exits_in_use(graph, rule, layers_);
  std::vector<std::string> outputs = {found.logits->name};
  for (const int64_t layer : rule_.layers) outputs.push_back(runtime::exit_output(layer));
  const std::vector<TextRows> rows = rows_of_texts(graph, texts, outputs, progress);
  for (int64_t text = 0; text < rows.front().count(); ++text)
    whole_.push_back(runtime::argmax(rows.front().row(text)));
  for (size_t exit = 1; exit < rows.size(); ++exit) {
    std::vector<Answer>& answers = exits_.emplace_back();
    for (int64_t text = 0; text < rows[exit].count(); ++text) {
      const std::span<const float> logits = rows[exit].row(text);
      answers.push_back({runtime::argmax(logits), runtime::confidence_of(rule_.confidence, logits)});
    }
  }
}

ExitQuality EncoderExitEvaluator::evaluate(double threshold) const {
  ExitQuality quality;
  quality.windows = quality.tokens = texts();
  quality.exits.layers = layers_;
  quality.exits.exit_after = rule_.layers;
  quality.exits.exit_after.push_back(layers_);
  quality.exits.tokens.resize(quality.exits.exit_after.size());
  int64_t agreeing = 0, right = 0, whole_right = 0;
  for (size_t text = 0; text < whole_.size(); ++text) {
    size_t exit = 0;
    while (exit < exits_.size() && !(exits_[exit][text].confidence >= threshold)) ++exit;
    const int64_t top = exit < exits_.size() ? exits_[exit][text].top : whole_[text];
    ++quality.exits.tokens[exit];
    agreeing += top == whole_[text] ? 1 : 0;
    quality.losses.push_back(top == whole_[text] ? 0 : 1);
    if (labels_.empty()) continue;
    right += top == labels_[text] ? 1 : 0;
    whole_right += whole_[text] == labels_[text] ? 1 : 0;
  }
  const auto count = static_cast<double>(texts());
  quality.agreement = static_cast<double>(agreeing) / count;
  if (!labels_.empty()) {
    quality.accuracy = static_cast<double>(right) / count;
    quality.full_accuracy = static_cast<double>(whole_right) / count;
  }
  return quality;
}

}  // namespace quern::calibrate
