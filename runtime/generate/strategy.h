// How the next tokens are found. A strategy works by three verbs of Session and Sequence alone: append
// tokens, read the logits of any of them, rewind.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/decoder/session.h"
#include "runtime/generate/sampler.h"

namespace quern::runtime {

// A text in the making.
struct GenerationStream {
  size_t prompt = 0;  // its number, which tells it from the others
  Sequence sequence;  // holds all of `tokens` but the last
  // The prompt and what was generated, end tokens included; less what was given up where the text outgrew the
  // context.
  std::vector<int64_t> tokens;
  RandomStream random;
  int64_t most_new = 0;  // tokens that may still be added
  // What a call of advance() found, for the caller to take over: appended to `tokens` already.
  std::vector<int64_t> found;
};

// What speculation did. accepted <= evaluated <= verified <= proposed.
struct SpeculationStatistics {
  int64_t rounds = 0;              // runs of the model, counted for each stream that was part of one
  int64_t speculative_rounds = 0;  // those in which proposed tokens were verified
  int64_t tokens = 0;              // found in all rounds together
  int64_t proposed = 0;            // tokens that the drafter named
  int64_t verified = 0;            // of them, computed by the model
  int64_t evaluated = 0;           // of them, those whose predecessors were all accepted
  int64_t accepted = 0;
  double draft_seconds = 0;  // spent on proposing
  double seconds = 0;        // of all rounds
  // Of the rounds among them in which nothing was guessed.
  int64_t plain_tokens = 0;
  double plain_seconds = 0;

  // Share of the verified tokens that were accepted.
  double acceptance_rate() const {
    return verified > 0 ? static_cast<double>(accepted) / static_cast<double>(verified) : 0;
  }
  // 1 for plain decoding.
  double tokens_per_round() const {
    return rounds > 0 ? static_cast<double>(tokens) / static_cast<double>(rounds) : 0;
  }
  // Against plain decoding, as the plain rounds in between tell; 0 where there were none.
  double estimated_speedup() const {
    if (plain_tokens == 0 || seconds <= 0) return 0;
    return plain_seconds / static_cast<double>(plain_tokens) * static_cast<double>(tokens) / seconds;
  }
  double draft_share() const { return seconds > 0 ? draft_seconds / seconds : 0; }
  SpeculationStatistics& operator+=(const SpeculationStatistics& other);
};

class DecodingStrategy {
 public:
  virtual ~DecodingStrategy() = default;
  // Adds one token or more, but at most most_new, to every stream. Exact strategies give the tokens that
  // plain decoding would give: with greedy sampling the same ones, with sampling the same distribution.
  // `company`: steps of other sequences, prompts for one, that the same run computes; their logits are
  // the session's first ones afterwards, in their order.
  virtual void advance(std::span<GenerationStream* const> streams, std::span<const SequenceStep> company) = 0;
  // The stream has ended: what is kept for it may go.
  virtual void forget(const GenerationStream&) {}
  // The stream goes on, but tokens have gone out of its middle, or its sequence is about to be computed anew.
  virtual void renumbered(const GenerationStream& stream) { forget(stream); }
  // Whether a sequence that was advanced is what a prefill of its tokens gives.
  virtual bool is_like_prefill() const { return true; }
  // Null for strategies that don't speculate.
  virtual const SpeculationStatistics* statistics() const { return nullptr; }
};

// One token for each stream and call, all in one run.
class PlainDecoding final : public DecodingStrategy {
 public:
  // Both must outlive the strategy.
  PlainDecoding(Session& session, Sampler& sampler) : session_(session), sampler_(sampler) {}
  void advance(std::span<GenerationStream* const> streams, std::span<const SequenceStep> company) override;

 private:
  Session& session_;
  Sampler& sampler_;
  std::vector<SequenceStep> steps_;
};

}  // namespace quern::runtime
