#include "runtime/speculate/verifier.h"

#include <algorithm>

namespace quern::runtime {
namespace {

double probability_of(std::span<const TokenProbability> distribution, int64_t id) {
  const auto at = std::lower_bound(distribution.begin(), distribution.end(), id,
                                   [](const TokenProbability& t, int64_t wanted) { return t.id < wanted; });
  return at != distribution.end() && at->id == id ? at->probability : 0;
}

// p becomes norm(max(0, p - q)). Where nothing is left but rounding, p stays: then p was q, and a rejection
// had no probability.
void subtract(std::vector<TokenProbability>& p, std::span<const TokenProbability> q) {
  double total = 0;
  auto other = q.begin();
  std::vector<TokenProbability> left;
  for (const TokenProbability& token : p) {
    while (other != q.end() && other->id < token.id) ++other;
    const double taken = other != q.end() && other->id == token.id ? other->probability : 0;
    if (token.probability <= taken) continue;
    left.push_back({token.id, token.probability - taken});
    total += left.back().probability;
  }
  if (!(total > 1e-12)) return;
  for (TokenProbability& token : left) token.probability /= total;
  p.swap(left);
}

}  // namespace

void Verifier::children_of(const Proposal& proposal, int32_t node) {
  children_.clear();
  for (size_t i = static_cast<size_t>(node + 1); i < proposal.size(); ++i) {
    if (proposal.parents[i] == node) children_.push_back(static_cast<int32_t>(i));
  }
}

int32_t Verifier::choose(const Proposal& proposal, int64_t token) {
  int32_t chosen = -1;
  for (const int32_t child : children_) {
    const bool same = chosen < 0 && proposal.tokens[static_cast<size_t>(child)] == token;
    if (same) chosen = child;
    verdict_.evaluated.push_back({child, same});
  }
  return chosen;
}

int32_t Verifier::reject(const Proposal& proposal, RandomStream& random, int64_t& token) {
  for (const int32_t child : children_) {
    const auto i = static_cast<size_t>(child);
    const std::vector<TokenProbability>& q = proposal.drawn_from[i];
    token = proposal.tokens[i];
    const bool accepted = random.next_uniform() * probability_of(q, token) < probability_of(residual_, token);
    verdict_.evaluated.push_back({child, accepted});
    if (accepted) return child;
    subtract(residual_, q);
  }
  token = draw(residual_, random);
  return -1;
}

const Verdict& Verifier::judge(const Proposal& proposal, const LogitsOf& logits_of,
                               std::vector<int64_t>& history, RandomStream& random) {
  verdict_.path.clear();
  verdict_.tokens.clear();
  verdict_.evaluated.clear();
  if (typical_ && !proposal.empty()) {
    accept_typical(proposal, logits_of, history);
    const int32_t last = verdict_.path.empty() ? -1 : verdict_.path.back();
    verdict_.tokens.push_back(sampler_.next(logits_of(last), history, random));
    history.push_back(verdict_.tokens.back());
    return verdict_;
  }
  for (int32_t node = -1;;) {
    const std::span<const float> logits = logits_of(node);
    children_of(proposal, node);
    int64_t token = 0;
    if (proposal.drawn_from.empty() || children_.empty()) {
      token = sampler_.next(logits, history, random);
      node = choose(proposal, token);
    } else {
      const std::span<const TokenProbability> p = sampler_.distribution(logits, history);
      residual_.assign(p.begin(), p.end());
      node = reject(proposal, random, token);
    }
    history.push_back(token);
    verdict_.tokens.push_back(token);
    if (node < 0) return verdict_;
    verdict_.path.push_back(node);
  }
}

}  // namespace quern::runtime
