// Guesses by a smaller model.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/decoder/session.h"
#include "runtime/speculate/draft_sampler.h"

namespace quern::runtime {

struct ModelDrafterOptions {
  SessionOptions session;
  SamplingOptions sampling;  // of the text
  DraftRule rule = DraftRule::Shared;
  int64_t vocabulary = 0;  // ids from here on mean nothing to the model that verifies; 0: all are fine
};

class ModelDrafter final : public Drafter {
 public:
  ModelDrafter(std::shared_ptr<const Program> program, const ModelDrafterOptions& options);
  std::string_view name() const override { return "draft"; }
  int classes() const override;
  void propose(std::span<GenerationStream* const> streams, std::span<const int64_t> limits, Pacing& pacing,
               std::span<Proposal> proposals) override;
  void forget(const GenerationStream& stream) override { texts_.erase(stream.prompt); }

 private:
  struct Text {
    Sequence sequence;
    size_t agreed = 0;            // tokens of the sequence that are known to be the stream's
    std::vector<int64_t> tokens;  // the stream's and what is proposed behind them
    RandomStream random;
  };
  // A stream while tokens are guessed for it.
  struct Active {
    size_t stream = 0;
    Text* text = nullptr;
    double reached = 1;
  };
  bool can_follow(const GenerationStream& stream, int64_t limit) const;
  Text& text_of(const GenerationStream& stream);
  void catch_up(Text& text, const GenerationStream& stream);
  void run(std::span<const Active> active);

  Session session_;
  DraftSampler sampler_;
  ModelDrafterOptions options_;
  int64_t vocabulary_;
  std::unordered_map<size_t, Text> texts_;
  std::vector<SequenceStep> steps_;
};

}  // namespace quern::runtime
