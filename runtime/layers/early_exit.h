// Decoding that stops in the middle of the model where it is sure enough.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "runtime/decoder/session.h"
#include "runtime/generate/sampler.h"
#include "runtime/generate/strategy.h"

namespace quern::runtime {

// How sure an exit is, from 0 to 1 (Schuster et al., Confident Adaptive Language Modeling, 2022,
// section 3.4):
enum class ExitConfidence : uint8_t {
  Margin,          // the most likely token's probability less the second's
  MaxProbability,  // the most likely token's
  Entropy,         // 1 - H(p) / log(vocabulary); FastBERT's "speed" is 1 less it (Liu et al. 2020)
  Saturation,      // cosine of the hidden state with the one a layer before
  Classifier,      // a linear classifier of the hidden state
  Always,          // 1: a fixed layer
};
// "margin", "max-probability", "entropy", "saturation", "classifier", "fixed"
std::string_view to_string(ExitConfidence confidence);

struct LinearClassifier {
  std::vector<float> weight;
  float bias = 0;
};

struct ExitRule {
  ExitConfidence confidence = ExitConfidence::Margin;
  // The least confidence to exit with. It decays over a text of N tokens to 0.9 threshold + 0.1
  // exp(-decay t / N), CALM's equation 5: early tokens, on which more depends, are held to more. decay 0:
  // the threshold is the same everywhere.
  double threshold = 0.9;
  double decay = 0;
  std::vector<int64_t> layers;                // exits in use, ascending; empty: all that the model has
  std::vector<LinearClassifier> classifiers;  // of the layers in use, for Classifier

  // For token `t` of `n` to be written.
  double threshold_at(int64_t t, int64_t n) const;
};

// A program whose entry 0 is the model as ever; the others are EarlyExitDecoder's. Throws
// Error{InvalidArgument} where the model has no exit head behind one of the layers.
std::shared_ptr<const Program> compile_early_exit(const Graph& graph, const ExitRule& rule);

struct ExitStatistics {
  int64_t layers = 0;               // of the model
  std::vector<int64_t> exit_after;  // layers that have run; the last entry is the whole model
  std::vector<int64_t> tokens;      // that left there

  int64_t total() const;
  double average_layers() const;
  // Of the same exits, or of none yet.
  ExitStatistics& operator+=(const ExitStatistics& other);
};

// Computes one token of each of many sequences, each as deep as it needs. The keys and values of layers that
// a token skips are projected from its hidden state at the exit. Lossy: the logits are those of the exit, and
// later tokens see what was projected.
class EarlyExitDecoder {
 public:
  // The session's program is compile_early_exit(graph, rule).
  EarlyExitDecoder(Session& session, const Graph& graph, const ExitRule& rule);

  // Appends one token for each step. thresholds[i]: of step i. Where it throws, all sequences are as they
  // were.
  void run(std::span<const SequenceStep> steps, std::span<const double> thresholds);
  // Of the last run.
  std::span<const float> logits(size_t step) const { return results_[step].logits; }
  int64_t layers_run(size_t step) const { return results_[step].layers; }
  // What each exit that was passed said of the step's token: its confidence.
  std::span<const double> confidences(size_t step) const { return results_[step].confidences; }

  const ExitRule& rule() const { return rule_; }
  const ExitStatistics& statistics() const { return statistics_; }

 private:
  struct Result {
    std::vector<float> logits;
    std::vector<double> confidences;
    int64_t layers = 0;
  };
  // Steps that are still on their way, and their rows.
  struct Group {
    std::vector<size_t> steps;
    std::vector<float> rows;
  };
  size_t exits() const { return rule_.layers.size(); }
  void compute(std::span<const SequenceStep> steps, std::span<const double> thresholds);
  void run_entry(std::span<const SequenceStep> steps, const Group& group, int entry);
  double confidence(size_t exit, size_t index) const;
  void finish(size_t step, std::span<const float> logits, size_t exit);

  Session& session_;
  ExitRule rule_;
  std::vector<Result> results_;
  std::vector<SequenceStep> running_;
  ExitStatistics statistics_;
};

// Plain decoding with early exits. Prompts are computed by the whole model.
class EarlyExitDecoding final : public DecodingStrategy {
 public:
  // `statistics`: added to as texts are written; may be null.
  EarlyExitDecoding(Session& session, Sampler& sampler, const Graph& graph, const ExitRule& rule,
                    std::shared_ptr<ExitStatistics> statistics = nullptr);
  void advance(std::span<GenerationStream* const> streams, std::span<const SequenceStep> company) override;
  void forget(const GenerationStream& stream) override { written_.erase(stream.prompt); }
  void renumbered(const GenerationStream&) override {}
  bool is_like_prefill() const override { return false; }

 private:
  Session& session_;
  Sampler& sampler_;
  EarlyExitDecoder decoder_;
  std::shared_ptr<ExitStatistics> shared_;
  std::unordered_map<size_t, int64_t> written_;  // tokens of each text
  std::vector<SequenceStep> steps_;
  std::vector<double> thresholds_;
};

}  // namespace quern::runtime
