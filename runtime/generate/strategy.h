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
  Sequence sequence;            // holds all of `tokens` but the last
  std::vector<int64_t> tokens;  // the prompt and what was generated, end tokens included
  RandomStream random;
  int64_t most_new = 0;  // tokens that may still be added
  // What a call of advance() found, for the caller to take over: appended to `tokens` already.
  std::vector<int64_t> found;
};

class DecodingStrategy {
 public:
  virtual ~DecodingStrategy() = default;
  // Adds one token or more, but at most most_new, to every stream. Exact strategies give the tokens that
  // plain decoding would give: with greedy sampling the same ones, with sampling the same distribution.
  virtual void advance(std::span<GenerationStream* const> streams) = 0;
};

// One token for each stream and call, all in one run.
class PlainDecoding final : public DecodingStrategy {
 public:
  // Both must outlive the strategy.
  PlainDecoding(Session& session, Sampler& sampler) : session_(session), sampler_(sampler) {}
  void advance(std::span<GenerationStream* const> streams) override;

 private:
  Session& session_;
  Sampler& sampler_;
  std::vector<SequenceStep> steps_;
};

}  // namespace quern::runtime
