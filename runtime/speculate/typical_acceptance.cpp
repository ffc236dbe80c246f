// The lossy rule of Verifier.
#include <algorithm>
#include <cmath>

#include "runtime/speculate/verifier.h"

namespace quern::runtime {
namespace {

// What a sampler would draw from; of a greedy one the model's own distribution.
std::vector<TokenProbability> distribution_of(Sampler& sampler, std::span<const float> logits,
                                              std::span<const int64_t> history) {
  if (sampler.options().sample) {
    const auto drawn_from = sampler.distribution(logits, history);
    return {drawn_from.begin(), drawn_from.end()};
  }
  logits = sampler.choosable(logits);
  const float most = *std::max_element(logits.begin(), logits.end());
  std::vector<TokenProbability> all(logits.size());
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    all[i] = {static_cast<int64_t>(i), std::exp(static_cast<double>(logits[i] - most))};
    total += all[i].probability;
  }
  for (TokenProbability& token : all) token.probability /= total;
  return all;
}

double threshold_of(std::span<const TokenProbability> p, const TypicalAcceptance& rule) {
  double entropy = 0;
  for (const TokenProbability& token : p) {
    if (token.probability > 0) entropy -= token.probability * std::log(token.probability);
  }
  return std::min(rule.epsilon, rule.delta * std::exp(-entropy));
}

double probability_of(std::span<const TokenProbability> p, int64_t id) {
  const auto at = std::lower_bound(p.begin(), p.end(), id,
                                   [](const TokenProbability& t, int64_t wanted) { return t.id < wanted; });
  return at != p.end() && at->id == id ? at->probability : 0;
}

struct Reached {
  int32_t node = -1;
  std::vector<int32_t> path;
  double log_probability = 0;
};

}  // namespace

// Leaves the path in the verdict and its tokens in `history`.
void Verifier::accept_typical(const Proposal& proposal, const LogitsOf& logits_of,
                              std::vector<int64_t>& history) {
  const size_t before = history.size();
  std::vector<Reached> open = {{}};
  Reached best;
  while (!open.empty()) {
    const Reached at = std::move(open.back());
    open.pop_back();
    const bool longer = at.path.size() > best.path.size();
    if (longer || (at.path.size() == best.path.size() && at.log_probability > best.log_probability))
      best = at;
    children_of(proposal, at.node);
    if (children_.empty()) continue;
    history.resize(before);
    for (const int32_t node : at.path) history.push_back(proposal.tokens[static_cast<size_t>(node)]);
    const std::vector<TokenProbability> p = distribution_of(sampler_, logits_of(at.node), history);
    const double threshold = threshold_of(p, *typical_);
    for (const int32_t child : children_) {
      const double probability = probability_of(p, proposal.tokens[static_cast<size_t>(child)]);
      const bool accepted = probability > threshold;
      verdict_.evaluated.push_back({child, accepted});
      if (!accepted) continue;
      Reached& next = open.emplace_back(at);
      next.node = child;
      next.path.push_back(child);
      next.log_probability += std::log(probability);
    }
  }
  history.resize(before);
  verdict_.path = best.path;
  for (const int32_t node : best.path) {
    verdict_.tokens.push_back(proposal.tokens[static_cast<size_t>(node)]);
    history.push_back(verdict_.tokens.back());
  }
}

}  // namespace quern::runtime
