#include "runtime/speculate/pacing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

namespace quern::runtime {
namespace {

// Plain rounds before the first speculation: behind a prompt, which has emptied the caches of the weights,
// the first ones may take twice what the others do.
constexpr int64_t kCalibration = 6;
constexpr int64_t kPlainEvery = 24;    // rounds, so that what plain decoding costs stays known
constexpr int64_t kExploreAfter = 16;  // rounds without any speculation
constexpr int64_t kExploreTokens = 4;
// At first, until so many tokens were evaluated: what is tried may be worth nothing.
constexpr int64_t kFirstTokens = 2;
constexpr double kFirstEvaluated = 3;
constexpr double kLeastSlope = 0.5;     // of what a row has cost on average
constexpr double kIdleShare = 0.02;     // of a plain round: time that says something was guessed
constexpr int64_t kMostIdleDrafts = 8;  // guessed at one after another, and found not worth being verified
// Plain rounds that the first tries may cost: a share of the text's length, within limits.
constexpr double kOpeningShare = 0.025;
constexpr double kLeastOpening = 1, kMostOpening = 4;
constexpr double kMostCredit = 8;     // plain rounds that a gain can be remembered for
constexpr double kClip = 3;           // times the average
constexpr double kRateMemory = 0.98;  // weight that an evaluated token keeps at the next one
constexpr double kPriorRate = 0.7;    // what is assumed before anything is known: worth a try
constexpr double kPriorWeight = 2;
constexpr double kTimeMemory = 0.95;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A proposed token of any stream.
struct Candidate {
  double reach;  // probability that it and all before it are accepted
  uint32_t stream;
  int32_t node;
};

}  // namespace

void Pacing::Average::add(double sample, double weight) {
  if (++samples <= kCalibration) {
    // The first ones touch memory for the first time, or meet threads asleep: the least is closest.
    value = samples == 1 ? sample : std::min(value, sample);
    return;
  }
  value += weight * (std::min(clipped(sample), 2 * value) - value);
}

double Pacing::Average::clipped(double sample) const {
  return samples < kCalibration ? sample : std::min(sample, kClip * value);
}

void Pacing::Line::add(double at, double v, double weight) {
  w += weight;
  x += weight * at;
  y += weight * v;
  xx += weight * at * at;
  xy += weight * at * v;
}

void Pacing::Line::age(double factor) {
  for (double* sum : {&w, &x, &y, &xx, &xy}) *sum *= factor;
}

double Pacing::Line::operator()(double at) const {
  const double spread = w * xx - x * x;
  // Where all samples lie close together nothing is known of the slope: a row costs not much less than those
  // so far.
  const double least = x > 0 ? kLeastSlope * std::max(0.0, y) / x : 0;
  const double slope = spread > 1e-9 * w * xx ? std::max(least, (w * xy - x * y) / spread) : least;
  return std::max(0.0, (y - slope * x) / w + slope * at);
}

Pacing::Pacing(const PacingOptions& options, int classes, std::vector<double> priors)
    : options_(options), rates_(static_cast<size_t>(classes)), priors_(std::move(priors)) {
  priors_.resize(rates_.size(), kPriorRate);
  if (!options_.clock) options_.clock = steady_seconds;
}

void Pacing::enter(int64_t streams) {
  if (streams == streams_) return;
  const Costs* before = costs_;
  streams_ = streams;
  const auto [at, added] = by_streams_.try_emplace(streams);
  costs_ = &at->second;
  // More rows cost what they cost with another number of streams, until it is known better.
  if (added && before != nullptr) costs_->more = before->more;
}

Pacing::Mode Pacing::begin_round(int64_t streams, int64_t tokens_left) {
  if (!options_.adaptive) return mode_ = Mode::All;
  enter(streams);
  if (costs_->plain.samples < kCalibration) return mode_ = Mode::Plain;
  if (!opened_) {
    opened_ = true;
    const double share = kOpeningShare * static_cast<double>(tokens_left);
    account_ = std::clamp(share, kLeastOpening, kMostOpening) * plain_seconds();
  }
  if (costs_->more.w == 0) {
    // Better than what most machines reach, so that it is tried.
    costs_->more.add(1, 0.1 * plain_seconds(), 0.2);
    costs_->more.add(9, 0.5 * plain_seconds(), 0.2);
  }
  if (since_plain_ >= kPlainEvery) return mode_ = Mode::Plain;
  // Only what a try costs where nothing of it is accepted may be lost by it. What was measured once may have
  // been a stall: no try is too dear for good.
  const double most = kMostCredit / 2 * plain_seconds();
  if (account_ < std::min(try_seconds_, most)) return mode_ = Mode::Plain;
  if (all_.evaluated < kFirstEvaluated) return mode_ = Mode::Explore;
  const double price = costs_->more(kExploreTokens) + kExploreTokens * draft_step_.value;
  if (since_speculation_ >= kExploreAfter && account_ > std::min(price, most)) return mode_ = Mode::Explore;
  return mode_ = idle_drafts_ < kMostIdleDrafts ? Mode::Adapt : Mode::Plain;
}

int64_t Pacing::most() const {
  if (mode_ == Mode::Plain) return 0;
  if (mode_ == Mode::All) return options_.most;
  // No more than twice what was tried before, whose costs are known.
  if (mode_ == Mode::Adapt) return std::min(options_.most, std::max(kExploreTokens, 2 * most_verified_));
  return std::min(all_.evaluated < kFirstEvaluated ? kFirstTokens : kExploreTokens, options_.most);
}

double Pacing::acceptance(int32_t token_class) const {
  const Rate& rate = rates_[static_cast<size_t>(token_class)];
  const double prior = priors_[static_cast<size_t>(token_class)];
  return (rate.accepted + kPriorWeight * prior) / (rate.evaluated + kPriorWeight);
}

double Pacing::token_seconds() const {
  const double plain = plain_seconds() / static_cast<double>(streams_);
  return token_count_ > 0 ? std::min(plain, token_time_ / token_count_) : plain;
}

bool Pacing::worth_one_more(double reached, int64_t depth) const {
  if (depth >= most()) return false;
  if (mode_ != Mode::Adapt) return true;
  const double rate = (all_.accepted + kPriorWeight * kPriorRate) / (all_.evaluated + kPriorWeight);
  const double value = token_seconds();
  const double step = draft_step_.value;
  double gain = 0, probability = reached;
  // Several more may pay where one does not: the first row beyond a plain run costs more than the next.
  for (int64_t more = 1; depth + more <= options_.most; ++more) {
    probability *= rate;
    gain += value * probability;
    const double cost = costs_->more(static_cast<double>(depth + more)) -
                        (depth > 0 ? costs_->more(static_cast<double>(depth)) : 0);
    if (gain > cost + static_cast<double>(more) * step) return true;
  }
  return false;
}

void Pacing::select(std::span<Proposal> proposals) const {
  if (mode_ == Mode::All) return;
  std::vector<Candidate> candidates;
  for (size_t s = 0; s < proposals.size(); ++s) {
    const Proposal& proposal = proposals[s];
    std::vector<double> reach(proposal.size());
    for (size_t i = 0; i < proposal.size(); ++i) {
      const int32_t parent = proposal.parents[i];
      reach[i] = acceptance(proposal.classes[i]) * (parent < 0 ? 1 : reach[static_cast<size_t>(parent)]);
      candidates.push_back({reach[i], static_cast<uint32_t>(s), static_cast<int32_t>(i)});
    }
  }
  // A parent is at least as likely to be reached and stands before its children: it goes with them.
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.reach > b.reach; });
  size_t best = 0;
  double gain = 0, most_gain = 0;
  const size_t limit = static_cast<size_t>(most()) * proposals.size();
  for (size_t n = 1; n <= std::min(limit, candidates.size()); ++n) {
    gain += token_seconds() * candidates[n - 1].reach;
    const double net = gain - costs_->more(static_cast<double>(n));
    if (net > most_gain || mode_ == Mode::Explore) {
      most_gain = net;
      best = n;
    }
  }
  candidates.resize(best);
  std::vector<std::vector<int32_t>> kept(proposals.size());
  for (const Candidate& c : candidates) kept[c.stream].push_back(c.node);
  for (size_t s = 0; s < proposals.size(); ++s) {
    std::sort(kept[s].begin(), kept[s].end());
    proposals[s].keep(kept[s]);
  }
}

void Pacing::record_draft_step(int64_t streams, double seconds) {
  draft_step_.add(seconds / static_cast<double>(streams), 0.05);
}

void Pacing::record_token(int32_t token_class, bool accepted) {
  for (Rate* rate : {&rates_[static_cast<size_t>(token_class)], &all_}) {
    rate->accepted = kRateMemory * rate->accepted + (accepted ? 1 : 0);
    rate->evaluated = kRateMemory * rate->evaluated + 1;
  }
}

void Pacing::end_round(const Round& round) {
  if (!options_.adaptive) return;
  Costs& costs = *costs_;
  const int64_t extra = round.rows - streams_;
  double seconds = round.run_seconds;
  if (extra == 0) {
    seconds = costs.plain.clipped(seconds);
    // A sample stands for all the time since the one before it: machines change their pace.
    costs.plain.add(round.run_seconds, std::min(0.5, 0.05 * static_cast<double>(1 + since_plain_)));
    since_plain_ = 0;
    ++since_speculation_;
  } else {
    const double expected = plain_seconds() + costs.more(static_cast<double>(extra));
    seconds = std::min(seconds, kClip * expected);
    costs.more.age(kTimeMemory);
    costs.more.add(static_cast<double>(extra), seconds - plain_seconds(), 1);
    ++since_plain_;
    since_speculation_ = 0;
    most_verified_ = std::max(most_verified_, extra / streams_);
  }
  const double draft = std::min(round.draft_seconds, kClip * plain_seconds() * kExploreTokens);
  const double plain = plain_seconds() * static_cast<double>(round.tokens) / static_cast<double>(streams_);
  const bool drafted = draft > kIdleShare * plain_seconds();
  if (extra > 0) {
    idle_drafts_ = 0;
  } else if (mode_ == Mode::Adapt && drafted) {
    ++idle_drafts_;
  }
  if (extra > 0 || drafted) {
    const double cost = draft + std::max(0.0, seconds - plain_seconds());
    try_seconds_ += (try_seconds_ == 0 ? 1 : 0.1) * (cost - try_seconds_);
  }
  token_time_ = kTimeMemory * token_time_ + seconds + draft;
  token_count_ = kTimeMemory * token_count_ + static_cast<double>(round.tokens);
  if (!opened_) return;
  account_ += options_.tolerance * plain - draft;
  if (extra > 0) account_ += plain - seconds;
  account_ = std::min(account_, kMostCredit * plain_seconds());
}

}  // namespace quern::runtime
