// Guesses that a text goes on as it did before.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "runtime/speculate/drafter.h"

namespace quern::runtime {

// Prompt lookup (Saxena, Prompt Lookup Decoding, 2023): finds the latest place whose tokens agree with the
// longest end of the text, and proposes what followed there; a text that repeats itself is continued beyond
// its end. Needs no model and next to no time. A token's class is the number of tokens that agree before it,
// so that short matches are believed only where they have proved right.
class NgramDrafter final : public Drafter {
 public:
  std::string_view name() const override { return "ngram"; }
  int classes() const override { return kLongest; }
  double prior(int32_t token_class) const override { return token_class < 6 ? 0.3 + 0.1 * token_class : 0.9; }
  void propose(std::span<GenerationStream* const> streams, std::span<const int64_t> limits, Pacing& pacing,
               std::span<Proposal> proposals) override;
  void forget(const GenerationStream& stream) override { texts_.erase(stream.prompt); }

 private:
  static constexpr int kLongest = 16;      // tokens compared
  static constexpr int kCandidates = 512;  // places looked at

  // Places by their token, each linked to the one before it.
  struct Text {
    std::unordered_map<int64_t, int32_t> latest;
    std::vector<int32_t> earlier;
  };
  struct Match {
    int32_t place = -1;
    int length = 0;
  };
  static void index(Text& text, std::span<const int64_t> tokens);
  static Match find(const Text& text, std::span<const int64_t> tokens);

  std::unordered_map<size_t, Text> texts_;
};

}  // namespace quern::runtime
