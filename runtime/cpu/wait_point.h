// Where threads wait for one another: watching for a while, then asleep in the kernel.
//
// A waiter never offers its processor to others (sched_yield): Linux's fair scheduler takes that for giving
// up the whole time slice, some milliseconds, so that a program that waits thousands of times a second beside
// another one hardly runs at all. A thread that sleeps keeps what it is owed and runs soon after it is woken.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quern::cpu {

class alignas(64) WaitPoint {
 public:
  // Returns when ready() is true: watches for `spin`, then sleeps until notify(). Returns the nanoseconds by
  // which the wait was longer than `spin`.
  template <class Ready>
  int64_t wait(const Ready& ready, std::chrono::microseconds spin) {
    if (watch(ready, spin)) return 0;
    const auto start = Clock::now();
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (true) {
      const uint32_t ticket = tickets_.load(std::memory_order_seq_cst);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (ready()) break;
      sleep(ticket);
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
  }

  // After what ready() looks at was changed: wakes those who sleep. Hardly anything where nobody does.
  void notify() {
    // Either this sees the sleeper, or the sleeper the change.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
    tickets_.fetch_add(1, std::memory_order_seq_cst);
    wake_all();
  }

  // Whether ready() became true within `limit`.
  template <class Ready>
  static bool watch(const Ready& ready, std::chrono::microseconds limit) {
    constexpr int kPausesPerLook = 64;  // at the clock
    if (ready()) return true;
    if (limit.count() <= 0) return false;
    const Clock::time_point deadline = Clock::now() + limit;
    do {
      for (int i = 0; i < kPausesPerLook; ++i) {
        pause_briefly();
        if (ready()) return true;
      }
    } while (Clock::now() < deadline);
    return false;
  }

 private:
  using Clock = std::chrono::steady_clock;

  static void pause_briefly() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
  }
  // Until wake_all(), or at once where the ticket is another by now.
  void sleep(uint32_t ticket);
  void wake_all();

  std::atomic<uint32_t> tickets_{0};
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace quern::cpu
