// Guesses by Medusa heads.
#pragma once

#include <unordered_map>
#include <vector>

#include "runtime/decoder/session.h"
#include "runtime/speculate/drafter.h"
#include "runtime/speculate/medusa_tree.h"

namespace quern::runtime {

// The heads see the last hidden state that the model has computed anyway, of the one token behind which the
// text goes on, and each names what follows one place further (Cai et al. 2024). Their choices make a tree:
// a fixed one, or, without it, one grown anew for each token: the path is gone on with that is likeliest to
// be accepted, by what has been measured of tokens that a head was as sure of. A token's class joins its head
// and its probability.
class MedusaDrafter final : public Drafter {
 public:
  // `session`: of a program compiled with medusa_program(); it is the one that verifies, and must outlive the
  // drafter. Throws Error{InvalidArgument} for another program, or a tree that needs more heads.
  explicit MedusaDrafter(Session& session, MedusaTree tree = {});
  std::string_view name() const override { return "medusa"; }
  int classes() const override;
  double prior(int32_t token_class) const override;
  void propose(std::span<GenerationStream* const> streams, std::span<const int64_t> limits, Pacing& pacing,
               std::span<Proposal> proposals) override;
  void computed(const GenerationStream& stream, size_t step, int64_t row) override;
  void forget(const GenerationStream& stream) override { states_.erase(stream.prompt); }

  int64_t heads() const { return heads_; }

 private:
  // The likeliest tokens of one head for one stream, in that order.
  struct Choice {
    int64_t token;
    double probability;
  };
  using Choices = std::vector<std::vector<Choice>>;  // [head][rank]

  static int32_t class_of(size_t head, double probability);
  void compute(std::span<GenerationStream* const> streams, std::span<const size_t> asked);
  void choose(std::span<const float> logits, size_t count, std::vector<Choice>& choices);
  void follow(const Choices& choices, int64_t depth, Proposal& proposal) const;
  void grow(const Choices& choices, int64_t depth, const Pacing& pacing, Proposal& proposal) const;

  Session& session_;
  MedusaTree tree_;
  int64_t heads_ = 0;
  std::vector<char> shared_;  // of each head: it has the model's projection
  size_t ranks_ = 0;
  std::unordered_map<size_t, std::vector<float>> states_;  // by prompt: the last hidden state
  std::vector<float> rows_, projected_, probabilities_;
  std::vector<Choices> choices_;  // of the streams asked
};

}  // namespace quern::runtime
