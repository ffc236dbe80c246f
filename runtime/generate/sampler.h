// From logits to the next token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/generate/random.h"

namespace quern::runtime {

// Applied in the order and with the meaning of Hugging Face's generate(): repetition penalty, temperature,
// top-k, top-p, min-p.
struct SamplingOptions {
  bool sample = false;       // false: greedy, the most likely token, the lowest id where several are
  float temperature = 1.0f;  // > 0
  int64_t top_k = 0;         // keep the k most likely tokens, and those as likely as the last; 0: all
  float top_p = 1.0f;        // keep the fewest most likely tokens whose probabilities reach this; 1: all
  float min_p = 0.0f;        // keep tokens of at least this share of the most likely one's probability
  float repetition_penalty =
      1.0f;  // > 0; divides positive and multiplies negative logits of tokens seen before
  uint64_t seed = 0;
  // Tokens from this id on are never chosen; 0: all may be. Models have rows for more tokens than their
  // tokenizers, to a multiple of some size, and what stands in them was never trained.
  int64_t vocabulary = 0;

  // Throws Error{InvalidArgument} naming the field that is out of range.
  void check() const;
};

struct TokenProbability {
  int64_t id = 0;
  double probability = 0;
};

// Holds no state between calls but scratch space: equal arguments give equal results, on every platform whose
// logits are equal. One object per thread.
class Sampler {
 public:
  // Throws as SamplingOptions::check().
  explicit Sampler(const SamplingOptions& options);

  const SamplingOptions& options() const { return options_; }
  // Those of options().vocabulary.
  std::span<const float> choosable(std::span<const float> logits) const {
    const auto most = static_cast<size_t>(options_.vocabulary);
    return most == 0 || most >= logits.size() ? logits : logits.first(most);
  }

  // The next token. `history`: the prompt's and the generated tokens so far, for the repetition penalty.
  // `random` advances by one draw if sampling, by none if greedy.
  int64_t next(std::span<const float> logits, std::span<const int64_t> history, RandomStream& random);

  // What next() draws from: the tokens left after all processors, by ascending id, with probabilities that
  // sum to 1. Greedy: the one token. Valid until the next call. Speculative decoding accepts and rejects by
  // these.
  std::span<const TokenProbability> distribution(std::span<const float> logits,
                                                 std::span<const int64_t> history);

 private:
  std::span<const float> penalized(std::span<const float> logits, std::span<const int64_t> history);
  float lowest_kept(std::span<const float> logits);
  void keep_top_p();

  SamplingOptions options_;
  std::vector<float> scores_;
  std::vector<float> order_;
  std::vector<uint8_t> seen_;
  std::vector<TokenProbability> candidates_;
  std::vector<TokenProbability> sorted_;
};

// A token drawn from probabilities that sum to 1. One draw.
int64_t draw(std::span<const TokenProbability> distribution, RandomStream& random);

// The index of the greatest element, the lowest of several; NaN counts as less than everything.
int64_t argmax(std::span<const float> logits);

}  // namespace quern::runtime
