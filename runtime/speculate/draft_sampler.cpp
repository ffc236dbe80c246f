#include "runtime/speculate/draft_sampler.h"

#include <algorithm>
#include <array>
#include <limits>

namespace quern::runtime {
namespace {

// Classes of chosen tokens by how far their logit is above the second, and of drawn ones by their
// probability.
constexpr std::array kMargins = {0.25f, 0.5f, 0.75f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
constexpr std::array kProbabilities = {0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95};

template <class Bounds, class Value>
int32_t class_of(const Bounds& bounds, Value value) {
  return static_cast<int32_t>(std::upper_bound(bounds.begin(), bounds.end(), value) - bounds.begin());
}

// How far the greatest logit is above the second.
float margin(std::span<const float> logits) {
  float first = -std::numeric_limits<float>::infinity(), second = first;
  for (const float value : logits) {
    if (!(value > second)) continue;
    second = std::min(value, first);
    first = std::max(value, first);
  }
  return first - second;
}

}  // namespace

int DraftSampler::classes() {
  return static_cast<int>(kMargins.size()) + 1;
}

RandomStream DraftSampler::random_for(size_t prompt) const {
  return RandomStream(sampler_.options().seed ^ 0xA0761D6478BD642FULL, prompt);
}

int64_t DraftSampler::guess(std::span<const float> logits, std::span<const int64_t> history,
                            const RandomStream& text_random, RandomStream& own, Proposal& proposal) {
  const auto parent = static_cast<int32_t>(proposal.size()) - 1;
  if (!sampler_.options().sample) {
    // Without penalties, which history would tell about, this is the argmax.
    RandomStream none;
    const int64_t token = sampler_.next(logits, history, none);
    proposal.add(token, parent, class_of(kMargins, margin(logits)));
    return token;
  }
  const std::span<const TokenProbability> q = sampler_.distribution(logits, history);
  int64_t token = 0;
  if (rule_ == DraftRule::Shared) {
    RandomStream ahead = text_random;
    ahead.set_counter(ahead.counter() + proposal.size());
    token = draw(q, ahead);
  } else {
    token = draw(q, own);
    proposal.drawn_from.emplace_back(q.begin(), q.end());
  }
  const auto at = std::find_if(q.begin(), q.end(),
                               [&](const TokenProbability& candidate) { return candidate.id == token; });
  proposal.add(token, parent, class_of(kProbabilities, at->probability));
  return token;
}

}  // namespace quern::runtime
