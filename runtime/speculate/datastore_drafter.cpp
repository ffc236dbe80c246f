#include "runtime/speculate/datastore_drafter.h"

#include <algorithm>
#include <array>
#include <queue>
#include <tuple>
#include <vector>

#include "runtime/speculate/pacing.h"

namespace quern::runtime {
namespace {

constexpr std::array kLengths = {2, 3, 4, 6, 9};       // of matches
constexpr std::array kShares = {0.1, 0.25, 0.5, 0.8};  // of what followed the parent
constexpr std::array kPriors = {0.05, 0.15, 0.35, 0.6, 0.8};
constexpr int kShareClasses = static_cast<int>(kShares.size()) + 1;
constexpr int kLengthClasses = static_cast<int>(kLengths.size()) + 1;

template <class Bounds, class Value>
int32_t class_of(const Bounds& bounds, Value value) {
  return static_cast<int32_t>(std::upper_bound(bounds.begin(), bounds.end(), value) - bounds.begin());
}

int32_t class_of(int64_t length, double share, bool seen_once) {
  return (class_of(kLengths, length) * kShareClasses + class_of(kShares, share)) * 2 + (seen_once ? 1 : 0);
}

// What may follow a node of the tree: places that agree up to there.
struct Follower {
  double probability;  // of the path to the token, by frequency
  int32_t order;       // of finding, so that equal ones have an order
  int64_t token;
  int32_t parent;
  int64_t depth;  // of the token behind the match
  double share;
  Datastore::Range range;
};
struct Later {
  bool operator()(const Follower& a, const Follower& b) const {
    return std::tie(a.probability, b.order) < std::tie(b.probability, a.order);
  }
};

}  // namespace

int DatastoreDrafter::classes() const {
  return kLengthClasses * kShareClasses * 2;
}

double DatastoreDrafter::prior(int32_t token_class) const {
  const double share = kPriors[static_cast<size_t>(token_class / 2 % kShareClasses)];
  return token_class % 2 == 1 ? share / 2 : share;
}

DatastoreDrafter::Match DatastoreDrafter::find(std::span<const int64_t> tokens) const {
  // If an end of some length does not occur, no longer one does.
  size_t least = 0, most = std::min(kLongest, tokens.size());
  Match best;
  while (least < most) {
    const size_t length = (least + most + 1) / 2;
    const Datastore::Range range = store_->find(tokens.last(length));
    if (range.size() > 0) {
      best = {range, static_cast<int64_t>(length)};
      least = length;
    } else {
      most = length - 1;
    }
  }
  return best;
}

// Best first: the most frequent path is gone on with.
void DatastoreDrafter::grow(const Match& match, int64_t depth, int64_t nodes, Proposal& proposal) const {
  std::priority_queue<Follower, std::vector<Follower>, Later> open;
  int32_t found = 0;
  const auto add_followers = [&](const Datastore::Range& range, double probability, int32_t parent,
                                 int64_t at) {
    const int64_t sampled = std::min(range.size(), kSampled);
    // Places are in the order of what follows them: equal tokens are neighbours.
    const auto place = [&](int64_t i) { return range.first + i * range.size() / sampled; };
    for (int64_t i = 0; i < sampled;) {
      const int64_t token = store_->token(place(i), match.length + at);
      int64_t end = i + 1;
      while (end < sampled && store_->token(place(end), match.length + at) == token) ++end;
      const double share = static_cast<double>(end - i) / static_cast<double>(sampled);
      const Datastore::Range places = {place(i), end < sampled ? place(end) : range.last};
      if (token >= 0) open.push({probability * share, found++, token, parent, at, share, places});
      i = end;
    }
  };
  add_followers(match.range, 1, -1, 0);
  while (!open.empty() && static_cast<int64_t>(proposal.size()) < nodes) {
    const Follower next = open.top();
    open.pop();
    const auto node = static_cast<int32_t>(proposal.size());
    proposal.add(next.token, next.parent,
                 class_of(match.length + next.depth, next.share, next.range.size() == 1));
    if (next.depth + 1 < depth) add_followers(next.range, next.probability, node, next.depth + 1);
  }
}

void DatastoreDrafter::propose(std::span<GenerationStream* const> streams, std::span<const int64_t> limits,
                               Pacing& pacing, std::span<Proposal> proposals) {
  for (size_t i = 0; i < streams.size(); ++i) {
    if (limits[i] == 0) continue;
    const Match match = find(streams[i]->tokens);
    if (match.length > 0) grow(match, limits[i], pacing.most(), proposals[i]);
  }
}

}  // namespace quern::runtime
