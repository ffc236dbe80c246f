// Two models on the same data, side by side.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "calibrate/dataset.h"
#include "calibrate/scored_model.h"
#include "calibrate/statistics.h"
#include "calibrate/windows.h"

namespace quern::calibrate {

struct CompareOptions {
  WindowProtocol protocol;
  int64_t max_windows = 0;  // 0: all
  int threads = 0;          // for the metrics; 0: as many as there are cores
  // Called after every window (or document, of a classifier). May throw to cancel.
  std::function<void(int64_t done, int64_t total)> progress = {};
};

// A figure with its 95% confidence interval, where there is enough data for one.
struct Figure {
  double value = 0;
  std::optional<Interval> interval;
};

// How close the candidate's distributions are to the reference's, over all positions scored.
struct Agreement {
  double kl_mean = 0;  // nats; see logit_metrics.h
  double kl_median = 0;
  double kl_p99 = 0;
  double kl_max = 0;
  std::optional<Interval> kl_interval;  // of the mean
  Figure top1;                          // share of positions where both find the same token most likely
  Figure top5;                          // ... where the reference's is among the candidate's five most likely
  std::vector<double> kls;              // of each position, in order
};

// One model's own figures.
struct ModelScore {
  Figure perplexity;   // exp of the mean negative log-likelihood; of language models
  Figure accuracy;     // of classifiers with labels
  double seconds = 0;  // computing logits
};

// Per window, for plots: where in the data the candidate is worse.
struct WindowScore {
  double reference_nll = 0;  // mean over the window
  double candidate_nll = 0;
  double kl = 0;
};

struct Comparison {
  ScoredModel::Kind kind = ScoredModel::Kind::NextToken;
  int64_t windows = 0;          // or documents, of a classifier
  int64_t scored = 0;           // positions, or documents
  int64_t tokens_computed = 0;  // by each model, those that are context alone included
  int64_t too_short = 0;        // documents of fewer than two tokens, which have nothing to score
  bool labelled = false;
  WindowProtocol protocol;  // as used: a text shorter than the context shortens it
  ModelScore reference;
  ModelScore candidate;
  Figure perplexity_increase;  // candidate / reference - 1, paired by window
  Agreement agreement;
  std::vector<WindowScore> by_window;
  std::vector<double> kl_by_position;  // mean KL at each position of a window
};

// Scores `data` by both models. Memory: the data's ids, one chunk of logits of each model, and some numbers
// per position. Throws Error{BadData} where nothing can be scored or ids or labels lie outside the models'
// range; Error{InvalidArgument} where the models don't fit each other (naming both widths) or the protocol
// their context; Error{InvalidModel} where logits are NaN or infinite, naming the model and the position.
Comparison compare(ScoredModel& reference, ScoredModel& candidate, const TokenData& data,
                   const CompareOptions& options);

}  // namespace quern::calibrate
