// How a drafter that has logits chooses the tokens it guesses.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/generate/sampler.h"
#include "runtime/speculate/drafter.h"

namespace quern::runtime {

// How tokens are guessed where the text is sampled.
enum class DraftRule : uint8_t {
  // With the random numbers that the model will use: both often draw the same token, and the text is that of
  // plain sampling with the same seed, however much is guessed.
  Shared,
  // With random numbers of its own, accepted by Leviathan's rule: more tokens are accepted, but the text
  // depends on how many were guessed, too.
  Rejection,
};

class DraftSampler {
 public:
  // `sampling`: of the text.
  DraftSampler(const SamplingOptions& sampling, DraftRule rule) : sampler_(sampling), rule_(rule) {}

  // Classes of chosen tokens by how far their logit is above the second, and of drawn ones by their
  // probability.
  static int classes();
  // A stream of its own, that no prompt draws from.
  RandomStream random_for(size_t prompt) const;
  // Adds a token to the end of a chain. `history`: the text and what was guessed before; `text_random`: the
  // text's own, at the chain's beginning; `own`: from random_for().
  int64_t guess(std::span<const float> logits, std::span<const int64_t> history,
                const RandomStream& text_random, RandomStream& own, Proposal& proposal);

 private:
  Sampler sampler_;
  DraftRule rule_;
};

}  // namespace quern::runtime
