#include "runtime/speculate/ngram_drafter.h"

#include <algorithm>

namespace quern::runtime {

// All places but the last one, which the others are compared with.
void NgramDrafter::index(Text& text, std::span<const int64_t> tokens) {
  while (text.earlier.size() + 1 < tokens.size()) {
    const auto place = static_cast<int32_t>(text.earlier.size());
    const auto [at, added] = text.latest.try_emplace(tokens[text.earlier.size()], place);
    text.earlier.push_back(added ? -1 : at->second);
    at->second = place;
  }
}

NgramDrafter::Match NgramDrafter::find(const Text& text, std::span<const int64_t> tokens) {
  Match best;
  const auto found = text.latest.find(tokens.back());
  if (found == text.latest.end()) return best;
  const auto last = static_cast<int32_t>(tokens.size()) - 1;
  int32_t place = found->second;
  for (int i = 0; i < kCandidates && place >= 0 && best.length < kLongest; ++i) {
    int length = 1;
    while (length < kLongest && length <= place &&
           tokens[static_cast<size_t>(place - length)] == tokens[static_cast<size_t>(last - length)]) {
      ++length;
    }
    if (length > best.length) best = {place, length};
    place = text.earlier[static_cast<size_t>(place)];
  }
  return best;
}

void NgramDrafter::propose(std::span<GenerationStream* const> streams, std::span<const int64_t> limits,
                           Pacing&, std::span<Proposal> proposals) {
  for (size_t i = 0; i < streams.size(); ++i) {
    if (limits[i] == 0) continue;
    const std::span<const int64_t> tokens = streams[i]->tokens;
    Text& text = texts_[streams[i]->prompt];
    index(text, tokens);
    const Match match = find(text, tokens);
    if (match.place < 0) continue;
    Proposal& proposal = proposals[i];
    const size_t first = static_cast<size_t>(match.place) + 1;
    for (int64_t n = 0; n < limits[i]; ++n) {
      const size_t at = first + static_cast<size_t>(n);
      const int64_t token = at < tokens.size() ? tokens[at] : proposal.tokens[at - tokens.size()];
      const auto agreeing = std::min<int64_t>(match.length + n, kLongest);
      proposal.add(token, static_cast<int32_t>(n) - 1, static_cast<int32_t>(agreeing) - 1);
    }
  }
}

}  // namespace quern::runtime
