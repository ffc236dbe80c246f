// Which of the proposed tokens stand: exact rules, so that what is written has the distribution that the
// model alone would give it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "runtime/generate/sampler.h"
#include "runtime/speculate/drafter.h"

namespace quern::runtime {

struct Verdict {
  std::vector<int32_t> path;    // accepted nodes of the proposal, each the parent of the next
  std::vector<int64_t> tokens;  // found: those of the path and one more that the model chose
  // Nodes whose predecessors were all accepted, and whether they were themselves.
  struct Evaluated {
    int32_t node;
    bool accepted;
  };
  std::vector<Evaluated> evaluated;
};

// Lossy: a token stands if it is typical of what the model might say, p(x) > min(epsilon, delta exp(-H(p)))
// with the entropy H in nats, instead of being what the model does say (Cai et al., Medusa, 2024, section
// 3.2). The text is no longer the model's own; it is longer per run the less sure the model is.
struct TypicalAcceptance {
  double epsilon = 0.09;
  double delta = 0.3;  // usually the root of epsilon
};

// Tokens that a drafter chose: the model's own choice is made first, by one draw like in plain decoding, and
// stands whatever was proposed; if it is among the proposed tokens, the walk goes on behind it. So the same
// seed gives the same text with and without speculation.
//
// Tokens that were drawn from a distribution q (Proposal::drawn_from): accepted with probability
// min(1, p(x) / q(x)); where one is rejected, what follows is drawn from norm(max(0, p - q)), or, with more
// children, the next is tried against that (Leviathan et al. 2023; Miao et al., SpecInfer, 2024). The text
// has the distribution of plain sampling, but is another one.
class Verifier {
 public:
  // The sampler must outlive the verifier. With `typical` the longest path of typical tokens is accepted,
  // of equally long ones the most probable; the token behind it is the model's own choice.
  explicit Verifier(Sampler& sampler, std::optional<TypicalAcceptance> typical = {})
      : sampler_(sampler), typical_(typical) {}

  // The logits behind a node; -1: behind the last of `history`.
  using LogitsOf = std::function<std::span<const float>(int32_t node)>;
  // `history` grows by the tokens found. The verdict is valid until the next call.
  const Verdict& judge(const Proposal& proposal, const LogitsOf& logits_of, std::vector<int64_t>& history,
                       RandomStream& random);

 private:
  void accept_typical(const Proposal& proposal, const LogitsOf& logits_of, std::vector<int64_t>& history);
  void children_of(const Proposal& proposal, int32_t node);
  int32_t choose(const Proposal& proposal, int64_t token);
  int32_t reject(const Proposal& proposal, RandomStream& random, int64_t& token);

  Sampler& sampler_;
  std::optional<TypicalAcceptance> typical_;
  Verdict verdict_;
  std::vector<int32_t> children_;
  std::vector<TokenProbability> residual_;
};

}  // namespace quern::runtime
