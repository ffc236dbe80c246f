// Decoding that guesses several tokens and lets the model verify them in one run.
#pragma once

#include <memory>
#include <vector>

#include "runtime/generate/strategy.h"
#include "runtime/speculate/drafter.h"
#include "runtime/speculate/pacing.h"
#include "runtime/speculate/verifier.h"

namespace quern::runtime {

// Exact: since a session gives a token the same logits whatever it computes beside it, greedy decoding gives
// the tokens of plain decoding, at every precision, and sampling the same distribution (Verifier).
class SpeculativeDecoding final : public DecodingStrategy {
 public:
  // Session and sampler must outlive the strategy. Exact without `typical`.
  SpeculativeDecoding(Session& session, Sampler& sampler, std::unique_ptr<Drafter> drafter,
                      const PacingOptions& pacing = {}, std::optional<TypicalAcceptance> typical = {});
  void advance(std::span<GenerationStream* const> streams, std::span<const SequenceStep> company) override;
  void forget(const GenerationStream& stream) override { drafter_->forget(stream); }
  const SpeculationStatistics* statistics() const override { return &statistics_; }
  const Drafter& drafter() const { return *drafter_; }

 private:
  int64_t room_for(const GenerationStream& stream) const;
  void propose(std::span<GenerationStream* const> streams);
  void add_step(GenerationStream& stream, size_t i);
  void settle(GenerationStream& stream, size_t i);

  Session& session_;
  std::unique_ptr<Drafter> drafter_;
  Verifier verifier_;
  Pacing pacing_;
  SpeculationStatistics statistics_;
  std::vector<int64_t> limits_;
  std::vector<Proposal> proposals_;
  // Of the run: the last token of each stream and the proposal behind it.
  std::vector<std::vector<int64_t>> tokens_;
  std::vector<std::vector<int32_t>> parents_;
  std::vector<SequenceStep> steps_;
  size_t first_step_ = 0;  // of the streams' own
  std::vector<int32_t> path_;
};

}  // namespace quern::runtime
