#include "runtime/cpu/thread_policy.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace quern::cpu {
namespace {

// What a pass of one unit of work costs on so many threads, in seconds, and how much of it is stalled.
struct Cost {
  double seconds;
  double stalled;
};

// The share of `passes` that ran on each number of threads.
std::vector<double> shares(ThreadPolicy& policy, int most, int passes, const std::function<Cost(int)>& cost) {
  std::vector<double> out(static_cast<size_t>(most) + 1, 0.0);
  for (int i = 0; i < passes; ++i) {
    const int threads = policy.threads();
    EXPECT_GE(threads, 1);
    EXPECT_LE(threads, most);
    out[static_cast<size_t>(threads)] += 1;
    const Cost c = cost(threads);
    policy.record(1, c.seconds, c.stalled);
  }
  for (double& share : out) share /= passes;
  return out;
}

Cost undisturbed(int threads) {
  return {0.001 / threads, 0};
}

// Another program has a processor: all threads but one less wait for the last.
Cost contended(int threads) {
  return threads == 1 ? Cost{0.0015, 0} : Cost{0.02, 0.018};
}

TEST(ThreadPolicy, UsesAllThreadsWhereNothingDisturbs) {
  ThreadPolicy policy(4);
  EXPECT_EQ(shares(policy, 4, 5000, undisturbed)[4], 1.0);
}

TEST(ThreadPolicy, GoesDownToOneThreadBesideOthersAndComesBack) {
  ThreadPolicy policy(2);
  EXPECT_GT(shares(policy, 2, 5000, contended)[1], 0.97);
  shares(policy, 2, 3000, undisturbed);
  EXPECT_EQ(shares(policy, 2, 5000, undisturbed)[2], 1.0);
}

TEST(ThreadPolicy, LeavesOutTheThreadWhoseProcessorIsTaken) {
  ThreadPolicy policy(4);
  const auto cost = [](int threads) { return threads == 4 ? Cost{0.002, 0.004} : Cost{0.001 / threads, 0}; };
  EXPECT_GT(shares(policy, 4, 20000, cost)[3], 0.9);
}

TEST(ThreadPolicy, KeepsAllThreadsWhereFewerAreNoBetter) {
  ThreadPolicy policy(2);
  const auto cost = [](int threads) { return threads == 2 ? Cost{0.01, 0.005} : Cost{0.02, 0}; };
  EXPECT_GT(shares(policy, 2, 5000, cost)[2], 0.95);
}

TEST(ThreadPolicy, NeverLeavesOneThread) {
  ThreadPolicy policy(1);
  EXPECT_EQ(shares(policy, 1, 100, contended)[1], 1.0);
}

}  // namespace
}  // namespace quern::cpu
