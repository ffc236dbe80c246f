// What early exits of an encoder cost, for every threshold from one run of the whole model.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "calibrate/exit_calibration.h"
#include "calibrate/text_rows.h"
#include "runtime/layers/early_exit.h"

namespace quern::calibrate {

// The logits of the whole model and of every exit that a rule uses, of each text.
class EncoderExitEvaluator {
 public:
  // Throws as exits_in_use() and rows_of_texts(), Error{BadData} for no texts. `labels`: of each text, or
  // empty.
  EncoderExitEvaluator(const Graph& graph, const runtime::ExitRule& rule, const Texts& texts,
                       std::vector<int64_t> labels = {},
                       const std::function<void(int64_t done)>& progress = {});
  // Where texts would leave, and what that costs: the loss of a text is 1 where its class is another than the
  // whole model's. Perplexities mean nothing here.
  ExitQuality evaluate(double threshold) const;
  int64_t texts() const { return static_cast<int64_t>(whole_.size()); }

 private:
  struct Answer {
    int64_t top = 0;
    double confidence = 0;
  };
  runtime::ExitRule rule_;
  int64_t layers_ = 0;
  std::vector<std::vector<Answer>> exits_;  // by exit and text
  std::vector<int64_t> whole_;              // the class that the whole model names
  std::vector<int64_t> labels_;
};

}  // namespace quern::calibrate
