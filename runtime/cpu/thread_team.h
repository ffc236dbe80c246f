// A fork-join team of threads for kernels: short parallel regions, thousands a second, each with a static
// partition so that a thread meets the same weights, and so its own caches, at every token.
//
//   ThreadTeam team(2);
//   ThreadTeam::Hot hot(team);                    // for the length of a token: workers spin between regions
//   team.run([&](int thread) { ... });            // on every thread, the caller's being thread 0
//   team.run([&](int thread) {
//     first_half(thread);
//     team.barrier();                             // all threads of the region
//     second_half(thread);
//   });
//   team.run(1, [&](int thread) { ... });         // on the caller's thread and this many less one others
//
// Between regions a worker spins for a while (much longer while a Hot lives), then sleeps in the kernel; so
// does who waits for others within a region. One
// region runs at a time: run() from inside a region of the same team, or from two threads at once, throws
// Error{Internal}. An exception that leaves the body on any thread is thrown again by run(), the lowest
// thread's first; a body that can throw must do so before its first barrier() or on all threads alike, for
// the others would wait for it. A team of one thread calls the body and nothing else.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/cpu/wait_point.h"

namespace quern::cpu {

struct ThreadTeamOptions {
  int threads = 0;  // 0: default_thread_count()
  // How long a worker that has nothing to do watches for work before it sleeps, in microseconds: outside of
  // Hot and within.
  int spin_us = 50;
  int hot_spin_us = 5000;
  // The same for a thread that waits for the others of its region. Shares differ by less, unless a thread has
  // lost its processor: then this one may as well do without its own. 0 is used where the team has more
  // threads than there are processors.
  int barrier_spin_us = 200;
};

// The physical cores that this process may use: its affinity mask, hardware threads of one core counted once
// (they share its vector units), capped by the CPU quota of its control group. At least 1.
int default_thread_count();

class ThreadTeam {
 public:
  explicit ThreadTeam(int threads) : ThreadTeam(ThreadTeamOptions{.threads = threads}) {}
  // Throws Error{InvalidArgument} for negative or absurd (> 1024) counts, Error{OutOfMemory} where the system
  // refuses threads.
  explicit ThreadTeam(const ThreadTeamOptions& options = {});
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return size_; }

  // Calls body(thread) for thread = 0 .. size() - 1, each on its own thread, and returns when all are done;
  // what they wrote is then visible to the caller. No allocation.
  template <class Body>
  void run(Body&& body) {
    run(size_, std::forward<Body>(body));
  }
  // The same on the first `threads` threads alone, 1 to size(); barrier() then is one of these.
  template <class Body>
  void run(int threads, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run_erased(
        threads, [](void* context, int thread) { (*static_cast<Plain*>(context))(thread); },
        const_cast<void*>(static_cast<const void*>(std::addressof(body))));
  }

  // Inside a region: returns when every thread of the region has called it; writes before it are visible
  // after it.
  void barrier();

  // How long threads have waited for others of their region beyond barrier_spin_us, added up over all threads
  // since the team was made: what other programs on the same processors cost.
  int64_t stalled_ns() const { return stalled_ns_.load(std::memory_order_relaxed); }

  // While one lives, workers keep watching (hot_spin_us) instead of going to sleep after spin_us.
  class Hot {
   public:
    explicit Hot(ThreadTeam& team) : team_(team) { team_.hot_.fetch_add(1, std::memory_order_relaxed); }
    ~Hot() { team_.hot_.fetch_sub(1, std::memory_order_relaxed); }
    Hot(const Hot&) = delete;
    Hot& operator=(const Hot&) = delete;

   private:
    ThreadTeam& team_;
  };

 private:
  using Function = void (*)(void* context, int thread);

  // An epoch is a number of regions so far, and in its low bits how many threads take part in the last.
  static constexpr int kThreadBits = 11;
  static constexpr uint64_t kThreadMask = (uint64_t{1} << kThreadBits) - 1;

  void run_erased(int threads, Function function, void* context);
  void work(int thread);
  void call(int thread) noexcept;
  // The next epoch after `seen`, or what stop() set. `idle`: the last region did without this thread.
  uint64_t wait_for_work(uint64_t seen, bool idle);
  void begin_epoch(int threads);
  void stop();

  int size_ = 1;
  int active_ = 1;  // threads of the region; written by the caller before the epoch
  ThreadTeamOptions options_;
  std::chrono::microseconds barrier_spin_{0};
  Function function_ = nullptr;
  void* context_ = nullptr;
  std::vector<std::exception_ptr> failures_;  // per thread
  std::vector<std::thread> workers_;

  // Each on its own cache line: they are written by different threads while others watch.
  alignas(64) std::atomic<uint64_t> epoch_{0};       // written by the caller
  alignas(64) std::atomic<int> running_{0};          // workers that have not finished the region
  alignas(64) std::atomic<int> arrived_{0};          // at the barrier
  alignas(64) std::atomic<uint32_t> generation_{0};  // of the barrier
  alignas(64) std::atomic<int> hot_{0};
  WaitPoint work_point_, end_point_, barrier_point_;
  std::atomic<int64_t> stalled_ns_{0};
  std::atomic<bool> busy_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> failed_{false};
};

// The part of 0 .. count - 1 that thread `thread` of `threads` takes: contiguous, equal but for one,
// ascending.
struct Range {
  int64_t begin;
  int64_t end;
};
inline Range part_of(int64_t count, int thread, int threads) {
  return {count * thread / threads, count * (thread + 1) / threads};
}

}  // namespace quern::cpu
