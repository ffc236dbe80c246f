// Guesses by what followed in texts that were stored before.
#pragma once

#include <memory>

#include "runtime/speculate/datastore.h"
#include "runtime/speculate/drafter.h"

namespace quern::runtime {

// Retrieval (He et al., REST: Retrieval-Based Speculative Decoding, 2023): looks for the longest end of the
// text that occurs in the store, and proposes a tree of what followed there, the most frequent first. Needs
// no model. A token's class joins the length of the match, how often the token followed its parent, and
// whether that was seen more than once.
class DatastoreDrafter final : public Drafter {
 public:
  explicit DatastoreDrafter(std::shared_ptr<const Datastore> store) : store_(std::move(store)) {}
  std::string_view name() const override { return "rest"; }
  int classes() const override;
  double prior(int32_t token_class) const override;
  void propose(std::span<GenerationStream* const> streams, std::span<const int64_t> limits, Pacing& pacing,
               std::span<Proposal> proposals) override;

 private:
  static constexpr size_t kLongest = 16;   // tokens of the text that are looked for
  static constexpr int64_t kSampled = 64;  // places of a range that are looked at

  struct Match {
    Datastore::Range range;
    int64_t length = 0;
  };
  Match find(std::span<const int64_t> tokens) const;
  void grow(const Match& match, int64_t depth, int64_t nodes, Proposal& proposal) const;

  std::shared_ptr<const Datastore> store_;
};

}  // namespace quern::runtime
