// Pacing on a simulated machine: what it costs where speculation is worthless, what it gains where it pays.
#include "runtime/speculate/pacing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

namespace quern::runtime {
namespace {

struct Machine {
  double first_extra_row = 0.1;  // seconds beyond those of a plain run, which takes 1
  double extra_row = 0.05;
  double draft_token = 0;
  double noise = 0.0;  // share
};

struct Outcome {
  double seconds = 0;
  int64_t tokens = 0;
  int64_t proposed = 0;
  double speedup() const { return static_cast<double>(tokens) / seconds; }
};

// Decodes with chains whose tokens are accepted with the probability that `rate` says.
Outcome simulate(const Machine& machine, const std::function<double(int64_t token)>& rate, int64_t tokens,
                 PacingOptions options = {}) {
  double now = 0;
  options.clock = [&] { return now; };
  Pacing pacing(options, 1);
  std::mt19937 random(4);
  std::uniform_real_distribution<double> uniform(0, 1);
  Outcome outcome;
  const auto spend = [&](double seconds) {
    const double stall = uniform(random) < 0.01 ? 20 * machine.noise : 0;
    now += seconds * (1 + machine.noise * (uniform(random) - 0.5) + stall);
  };
  while (outcome.tokens < tokens) {
    pacing.begin_round(1, tokens - outcome.tokens);
    std::vector<Proposal> proposals(1);
    Proposal& proposal = proposals.front();
    Pacing::Round round;
    double reached = 1;
    const double start = now;
    for (int64_t depth = 0; depth < pacing.most() && pacing.worth_one_more(reached, depth); ++depth) {
      const double before = now;
      if (machine.draft_token > 0) spend(machine.draft_token);
      if (machine.draft_token > 0) pacing.record_draft_step(1, now - before);
      proposal.add(0, static_cast<int32_t>(depth) - 1, 0);
      reached *= pacing.acceptance(0);
    }
    round.draft_seconds = now - start;
    outcome.proposed += static_cast<int64_t>(proposal.size());
    pacing.select(proposals);
    const auto extra = static_cast<int64_t>(proposal.size());
    const double run = now;
    spend(1 + (extra > 0 ? machine.first_extra_row + machine.extra_row * static_cast<double>(extra - 1) : 0));
    round.run_seconds = now - run;
    round.rows = 1 + extra;
    round.tokens = 1;
    for (int64_t i = 0; i < extra; ++i) {
      const bool accepted = uniform(random) < rate(outcome.tokens);
      pacing.record_token(0, accepted);
      if (!accepted) break;
      ++round.tokens;
    }
    pacing.end_round(round);
    outcome.tokens += round.tokens;
  }
  outcome.seconds = now;
  return outcome;
}

// Of the best fixed length, by the formula of Leviathan et al.
double best_speedup(const Machine& machine, double rate) {
  double best = 1;
  for (int n = 1; n <= 16; ++n) {
    const double tokens = (1 - std::pow(rate, n + 1)) / (1 - rate);
    const double cost = 1 + machine.first_extra_row + machine.extra_row * (n - 1) + n * machine.draft_token;
    best = std::max(best, tokens / cost);
  }
  return best;
}

TEST(Pacing, WorthlessGuessesCostNextToNothing) {
  for (const double noise : {0.0, 0.3}) {
    for (const Machine& machine : {Machine{0.1, 0.05, 0, noise}, Machine{1.0, 0.9, 0, noise},
                                   Machine{0.1, 0.05, 0.25, noise}, Machine{0.5, 0.5, 0.5, noise}}) {
      const Outcome outcome = simulate(
          machine, [](int64_t) { return 0.0; }, 4000);
      const Outcome plain = simulate(machine, [](int64_t) { return 0.0; }, 4000, {.most = 0});
      EXPECT_GT(outcome.speedup() / plain.speedup(), 0.95)
          << machine.first_extra_row << " " << machine.draft_token << " noise " << noise;
    }
  }
}

// The first tries must not take what a short text can't make up for.
TEST(Pacing, WorthlessGuessesCostAShortTextLittle) {
  for (const int64_t tokens : {64, 128, 256}) {
    for (const Machine& machine : {Machine{0.1, 0.05, 0, 0}, Machine{1.0, 0.9, 0, 0},
                                   Machine{0.1, 0.05, 0.4, 0}, Machine{0.5, 0.5, 0.5, 0}}) {
      const Outcome outcome = simulate(
          machine, [](int64_t) { return 0.0; }, tokens);
      EXPECT_GT(outcome.speedup(), 0.95)
          << tokens << " tokens, " << machine.first_extra_row << " " << machine.draft_token;
    }
  }
}

TEST(Pacing, NearlyReachesTheBestFixedLength) {
  for (const double draft : {0.0, 0.1, 0.25}) {
    for (const double rate : {0.6, 0.8, 0.95}) {
      const Machine machine = {0.1, 0.05, draft, 0.1};
      const Outcome outcome = simulate(
          machine, [&](int64_t) { return rate; }, 4000);
      EXPECT_GT(outcome.speedup(), 0.88 * best_speedup(machine, rate)) << draft << " " << rate;
    }
  }
}

// What pays by turns is switched on and off by turns.
TEST(Pacing, FollowsTheText) {
  const Machine machine = {0.2, 0.1, 0.2, 0.1};
  const auto rate = [](int64_t token) { return token / 500 % 2 == 0 ? 0.0 : 0.9; };
  const Outcome outcome = simulate(machine, rate, 8000);
  EXPECT_GT(outcome.speedup(), 1.12);
}

TEST(Pacing, RunsThatAreTooDearAreNotMade) {
  // Each row costs as much as a token: nothing can be gained.
  const Outcome outcome = simulate(
      {1.0, 1.0, 0.1, 0}, [](int64_t) { return 0.99; }, 4000);
  EXPECT_GT(outcome.speedup(), 0.95);
}

TEST(Pacing, NotAdaptiveTakesAll) {
  const Outcome outcome =
      simulate({0.1, 0.05, 0, 0}, [](int64_t) { return 0.0; }, 100, {.adaptive = false, .most = 3});
  EXPECT_EQ(outcome.proposed, 300);
}

// Of a tree the likely nodes are kept, each with its parents.
TEST(Pacing, KeepsTheLikelyPartOfATree) {
  double now = 0;
  Pacing pacing({.clock = [&] { return now; }}, 3);
  for (int i = 0; i < 8; ++i) {
    pacing.begin_round(1, 100);
    pacing.end_round({.rows = 1, .tokens = 1, .run_seconds = 1});
  }
  for (int i = 0; i < 200; ++i) {
    pacing.record_token(0, true);
    pacing.record_token(1, i % 2 == 0);
    pacing.record_token(2, false);
  }
  ASSERT_EQ(pacing.begin_round(1, 100), Pacing::Mode::Adapt);
  std::vector<Proposal> proposals(1);
  Proposal& tree = proposals.front();
  tree.add(10, -1, 2);  // hopeless, with a child that would be sure
  tree.add(11, 0, 0);
  tree.add(12, -1, 0);
  tree.add(13, 2, 1);
  tree.add(14, 2, 2);
  pacing.select(proposals);
  EXPECT_EQ(tree.tokens, (std::vector<int64_t>{12, 13}));
  EXPECT_EQ(tree.parents, (std::vector<int32_t>{-1, 0}));
}

}  // namespace
}  // namespace quern::runtime
