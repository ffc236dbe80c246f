// Who guesses the tokens that a model then verifies.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/generate/sampler.h"
#include "runtime/generate/strategy.h"

namespace quern::runtime {

class Pacing;

// Guesses at what follows a stream's tokens: a tree, often a chain. A parent comes before its children.
struct Proposal {
  std::vector<int64_t> tokens;
  // For each token the index of the one that it follows; -1: the stream's last token.
  std::vector<int32_t> parents;
  // For each token how sure the drafter is, as a class of tokens that are equally likely to be accepted:
  // 0 .. Drafter::classes() - 1. How likely that is, is measured.
  std::vector<int32_t> classes;
  // Empty: the tokens were chosen. Else, for each token, the distribution that it was drawn from, by
  // ascending id.
  std::vector<std::vector<TokenProbability>> drawn_from;

  size_t size() const { return tokens.size(); }
  bool empty() const { return tokens.empty(); }
  // Whether every token follows the one before it.
  bool is_chain() const;
  void clear();
  void add(int64_t token, int32_t parent, int32_t token_class);
  // Keeps the tokens at these ascending indices. With a token its parent must be among them.
  void keep(std::span<const int32_t> nodes);
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual std::string_view name() const = 0;
  // Computes what verifies: `steps`, the last ones of which are those of `streams` in their order, so that
  // the session's logits are theirs afterwards. A drafter that has computed a part of it already does the
  // rest alone. Where it throws, all sequences are as they were before propose().
  virtual void verify(Session& session, std::span<GenerationStream* const>,
                      std::span<const SequenceStep> steps) {
    session.run(steps);
  }
  // Number of classes of its tokens.
  virtual int classes() const = 0;
  // The share of a class's tokens that may be expected to be accepted, until it is measured.
  virtual double prior(int32_t) const { return 0.7; }
  // Fills proposals[i] (empty before) for streams[i], with at most limits[i] tokens after one another and
  // at most pacing.most() tokens in all. Asks `pacing` whether one more is worth its time where guessing
  // takes time.
  virtual void propose(std::span<GenerationStream* const> streams, std::span<const int64_t> limits,
                       Pacing& pacing, std::span<Proposal> proposals) = 0;
  // The last run chose the stream's last token by the logits of this row of this step (Session::logits());
  // called after each run, while its outputs can be read.
  virtual void computed(const GenerationStream&, size_t /*step*/, int64_t /*row*/) {}
  // The stream has ended.
  virtual void forget(const GenerationStream&) {}
};

}  // namespace quern::runtime
