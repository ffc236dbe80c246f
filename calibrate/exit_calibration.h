// What early exits cost, and how sure they must be to cost no more than is tolerated.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "runtime/decoder/session.h"
#include "runtime/layers/early_exit.h"

namespace quern::calibrate {

using TokenWindows = std::vector<std::vector<int64_t>>;

// Against the whole model, on the same text.
struct ExitQuality {
  int64_t windows = 0;
  int64_t tokens = 0;          // that were predicted
  double perplexity = 0;       // with exits
  double full_perplexity = 0;  // of the whole model
  double agreement = 0;        // share of the tokens whose most likely successor is the whole model's
  std::optional<double> accuracy, full_accuracy;  // of classifiers with labels
  runtime::ExitStatistics exits;
  // For each window, a loss from 0 to 1: ExitRisk.
  std::vector<double> losses;

  double perplexity_increase() const { return perplexity / full_perplexity - 1; }
};

enum class ExitRisk : uint8_t {
  Disagreement,  // share of the window's tokens whose most likely successor is another than the whole model's
  Perplexity,    // by how much the window's perplexity rises, as a share of it; between 0 and 1
};

struct ExitEvaluation {
  int64_t prompt = 16;    // first tokens of a window, computed by the whole model and not counted
  int64_t parallel = 16;  // windows at once
  ExitRisk risk = ExitRisk::Disagreement;
};

// Decodes windows of text as they stand, each token as deep as the rule asks for. What the whole model says
// is computed once for all rules. The session's program is runtime::compile_early_exit() for rules that
// differ in their thresholds alone.
class ExitEvaluator {
 public:
  // Throws Error{BadData} for windows that have no token behind the prompt.
  ExitEvaluator(runtime::Session& session, const Graph& graph, const runtime::ExitRule& rule,
                TokenWindows windows, const ExitEvaluation& options);
  ExitQuality evaluate(double threshold);
  int64_t windows() const { return static_cast<int64_t>(windows_.size()); }

 private:
  struct Batch;
  void whole_model();
  void evaluate_batch(runtime::EarlyExitDecoder& decoder, const runtime::ExitRule& rule, size_t first,
                      size_t count, ExitQuality& quality);

  runtime::Session& session_;
  const Graph& graph_;
  runtime::ExitRule rule_;
  TokenWindows windows_;
  ExitEvaluation options_;
  std::vector<std::vector<int64_t>> likeliest_;  // of the whole model, by window and position
  std::vector<std::vector<double>> nll_;         // nats, of the next token
};

// The Hoeffding-Bentkus p-value of "the risk is above alpha", of n losses in [0, 1] with this mean (Bates et
// al., Distribution-Free, Risk-Controlling Prediction Sets, 2021): valid for any distribution.
double hoeffding_bentkus_p(double mean, int64_t n, double alpha);

struct ThresholdStep {
  double threshold = 0;
  double risk = 0;  // mean loss
  double p_value = 1;
  double average_layers = 0;
  double perplexity_increase = 0;  // of decoders
  std::optional<double> accuracy;  // of classifiers with labels
  bool accepted = false;
};

struct ThresholdSearch {
  double tolerance = 0.01;         // of the risk
  double delta = 0.05;             // probability that the risk is above it nevertheless
  std::vector<double> thresholds;  // descending; empty: 1 .. 0.05 in steps of 0.05
  std::function<void(const ThresholdStep&)> tried = {};
};

struct ThresholdResult {
  std::vector<ThresholdStep> steps;  // as far as they were tried
  // The least threshold for which the risk is at most `tolerance` with probability 1 - delta; nothing where
  // not even the first was.
  std::optional<double> threshold;
};

// Learn then Test with fixed-sequence testing (Angelopoulos et al. 2021): thresholds from the most careful
// on, each tested at level delta, until one is not accepted. So the family-wise error is delta however many
// are tried.
ThresholdResult find_exit_threshold(const std::function<ExitQuality(double threshold)>& evaluate,
                                    const ThresholdSearch& search);
ThresholdResult find_exit_threshold(ExitEvaluator& evaluator, const ThresholdSearch& search);

}  // namespace quern::calibrate
