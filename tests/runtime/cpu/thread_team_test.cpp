#include "runtime/cpu/thread_team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ir/error.h"

namespace quern::cpu {
namespace {

TEST(ThreadTeam, RunsEveryThreadOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadTeam team(threads);
    std::vector<int> calls(static_cast<size_t>(threads), 0);
    for (int round = 0; round < 200; ++round) {
      team.run([&](int thread) { ++calls[static_cast<size_t>(thread)]; });
    }
    EXPECT_EQ(calls, std::vector<int>(static_cast<size_t>(threads), 200));
  }
}

TEST(ThreadTeam, WakesWorkersThatSleep) {
  ThreadTeam team({.threads = 3, .spin_us = 0, .hot_spin_us = 0});
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> calls{0};
    if (round % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    team.run([&](int) { calls.fetch_add(1); });
    EXPECT_EQ(calls.load(), 3);
  }
}

TEST(ThreadTeam, BarrierSeparatesPhases) {
  ThreadTeam team(4);
  ThreadTeam::Hot hot(team);
  std::vector<int> values(4, 0);
  std::vector<int> sums(4, 0);
  for (int round = 1; round <= 100; ++round) {
    team.run([&](int thread) {
      values[static_cast<size_t>(thread)] = round * (thread + 1);
      team.barrier();
      int sum = 0;
      for (const int value : values) sum += value;
      sums[static_cast<size_t>(thread)] = sum;
      team.barrier();
      values[static_cast<size_t>(thread)] = 0;
    });
    EXPECT_EQ(sums, std::vector<int>(4, 10 * round));
  }
}

TEST(ThreadTeam, RunsOnFewerThreads) {
  ThreadTeam team({.threads = 4, .spin_us = 5, .hot_spin_us = 5});
  std::vector<int> calls(4, 0);
  std::vector<int> expected(4, 0);
  for (int round = 0; round < 500; ++round) {
    const int threads = 1 + round * 7 % 4;
    std::atomic<int> before{0};
    std::vector<int> seen(4, threads);
    team.run(threads, [&](int thread) {
      before.fetch_add(1);
      team.barrier();
      seen[static_cast<size_t>(thread)] = before.load();
      ++calls[static_cast<size_t>(thread)];
    });
    EXPECT_EQ(seen, std::vector<int>(4, threads));
    for (int thread = 0; thread < threads; ++thread) ++expected[static_cast<size_t>(thread)];
  }
  EXPECT_EQ(calls, expected);
  EXPECT_THROW(team.run(0, [](int) {}), Error);
  EXPECT_THROW(team.run(5, [](int) {}), Error);
}

// Barriers where everybody goes to sleep at once: none may miss that the last has come.
TEST(ThreadTeam, WakesWhoSleepsAtABarrier) {
  ThreadTeam team({.threads = 3, .spin_us = 0, .hot_spin_us = 0, .barrier_spin_us = 0});
  int64_t sum = 0;
  for (int round = 0; round < 300; ++round) {
    team.run([&](int thread) {
      for (int turn = 0; turn < 3; ++turn) {
        if (turn == thread) sum += thread;
        team.barrier();
      }
    });
  }
  EXPECT_EQ(sum, 300 * 3);
}

TEST(ThreadTeam, TellsHowLongThreadsWaited) {
  ThreadTeam team({.threads = 2, .barrier_spin_us = 10});
  EXPECT_EQ(team.stalled_ns(), 0);
  team.run([&](int thread) {
    if (thread == 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    team.barrier();
  });
  EXPECT_GE(team.stalled_ns(), 1'000'000);
}

TEST(ThreadTeam, ThrowsTheLowestThreadsException) {
  ThreadTeam team(3);
  for (int round = 0; round < 10; ++round) {
    try {
      team.run([](int thread) {
        if (thread > 0) throw std::runtime_error(std::to_string(thread));
      });
      FAIL() << "no exception";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "1");
    }
    int calls = 0;
    team.run([&](int thread) { calls += thread == 0 ? 1 : 0; });
    EXPECT_EQ(calls, 1);
  }
}

TEST(ThreadTeam, RefusesNesting) {
  for (const int threads : {1, 2}) {
    ThreadTeam team(threads);
    EXPECT_THROW(team.run([&](int thread) {
      if (thread == 0) team.run([](int) {});
    }),
                 Error);
    EXPECT_NO_THROW(team.run([](int) {}));
  }
}

TEST(ThreadTeam, RefusesAbsurdSizes) {
  EXPECT_THROW(ThreadTeam(-1), Error);
  EXPECT_THROW(ThreadTeam(5000), Error);
  EXPECT_GE(default_thread_count(), 1);
}

TEST(ThreadTeam, PartsCoverAllOnce) {
  for (const int64_t count : {0, 1, 5, 64, 1001}) {
    for (const int threads : {1, 2, 3, 7}) {
      int64_t next = 0;
      for (int thread = 0; thread < threads; ++thread) {
        const Range range = part_of(count, thread, threads);
        EXPECT_EQ(range.begin, next);
        next = range.end;
      }
      EXPECT_EQ(next, count);
    }
  }
}

}  // namespace
}  // namespace quern::cpu
