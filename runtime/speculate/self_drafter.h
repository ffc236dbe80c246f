// Guesses by some of the model's own layers.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "runtime/decoder/session.h"
#include "runtime/speculate/draft_sampler.h"

namespace quern::runtime {

// The layers that guess. Without an exit head the last of them goes on to the model's own final norm and
// head.
struct SelfDraft {
  std::vector<int64_t> layers;  // ascending
  // The layers are the first ones, and the exit head behind them (exits_of()) gives the logits.
  bool exit_head = false;

  bool operator==(const SelfDraft&) const = default;
};

// A program whose entry 0 is the model as ever; the others are SelfDrafter's. Throws Error{InvalidArgument}
// for layers that the model lacks, all layers or none, or an exit head that is not there;
// Error{Unsupported} for a graph whose layers can't be told apart.
std::shared_ptr<const Program> compile_self_draft(const Graph& graph, const SelfDraft& draft);

// What is used unless told otherwise: the first exit head, else the first third of the layers.
SelfDraft default_self_draft(const Graph& graph);

// Self-speculation: guesses with the model's own sequences, so that the layers before the first one left out
// are computed once for a token, guessed and verified (Elhoushi et al., LayerSkip, 2024); behind it, layers
// may be left out anywhere, and see the keys and values of the whole model for what is verified (Zhang et
// al., Draft & Verify, 2024).
class SelfDrafter final : public Drafter {
 public:
  // The session's program is one of compile_self_draft(); it must outlive the drafter. `sampling`: of the
  // text.
  SelfDrafter(Session& session, const SamplingOptions& sampling, DraftRule rule = DraftRule::Shared);
  std::string_view name() const override { return "self"; }
  int classes() const override { return DraftSampler::classes(); }
  void propose(std::span<GenerationStream* const> streams, std::span<const int64_t> limits, Pacing& pacing,
               std::span<Proposal> proposals) override;
  void verify(Session& session, std::span<GenerationStream* const> streams,
              std::span<const SequenceStep> steps) override;
  void forget(const GenerationStream& stream) override { texts_.erase(stream.prompt); }

 private:
  enum Entry : int { kWhole, kDraft, kLower, kUpper };
  friend std::shared_ptr<const Program> compile_self_draft(const Graph& graph, const SelfDraft& draft);

  struct Text {
    std::vector<int64_t> tokens;  // the stream's and what is guessed behind them
    RandomStream random;
    int64_t drafted = 0;      // last tokens of the sequence that the first layers alone have computed
    std::vector<float> rows;  // the stream behind those layers, of these tokens
  };
  // A stream while tokens are guessed for it.
  struct Active {
    size_t stream = 0;
    Text* text = nullptr;
    double reached = 1;
  };
  Text& text_of(const GenerationStream& stream);
  void draft(std::span<const Active> active, std::span<GenerationStream* const> streams);
  void take_back(std::span<GenerationStream* const> streams);
  void lower(std::span<GenerationStream* const> streams, std::span<const SequenceStep> steps);

  Session& session_;
  DraftSampler sampler_;
  bool shares_layers_;  // the draft's first layers are the model's
  std::unordered_map<size_t, Text> texts_;
  std::vector<SequenceStep> steps_;
  std::vector<float> rows_;
};

}  // namespace quern::runtime
