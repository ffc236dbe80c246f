#include "runtime/cpu/thread_team.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <system_error>

#include "ir/error.h"

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quern::cpu {
namespace {

using Clock = std::chrono::steady_clock;

inline void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Spins until ready() or the deadline passes; the clock is read, and the processor offered to others, only
// now and then. Returns ready().
template <class Ready>
bool spin(const Ready& ready, std::chrono::microseconds limit) {
  constexpr int kPausesPerLook = 64;
  if (ready()) return true;
  const Clock::time_point deadline = Clock::now() + limit;
  // A waiter that has spun this long yields at each look: on a machine with more runnable threads than
  // processors the one waited for may need this very processor.
  const Clock::time_point polite = Clock::now() + std::chrono::microseconds(20);
  while (true) {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (ready()) return true;
      pause_briefly();
    }
    const Clock::time_point now = Clock::now();
    if (now >= deadline) return ready();
    if (now >= polite) std::this_thread::yield();
  }
}

template <class Ready>
void spin_until(const Ready& ready) {
  while (!spin(ready, std::chrono::seconds(1))) {
  }
}

#if defined(__linux__)
// "0-3,8" style lists hold the first processor of the core in front.
int first_of_list(const std::string& path) {
  std::ifstream file(path);
  int first = -1;
  file >> first;
  return file ? first : -1;
}

// Processors that the control group's quota pays for, rounded up; 0 where there is no quota.
int quota_processors() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 0;
  const double processors = std::atof(quota.c_str()) / period;
  return processors > 0 ? static_cast<int>(processors + 0.999) : 0;
}
#endif

}  // namespace

int default_thread_count() {
  const int logical = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
#if defined(__linux__)
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) return logical;
  std::vector<int> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mask)) continue;
    const int core =
        first_of_list("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
    cores.push_back(core < 0 ? cpu : core);
  }
  std::sort(cores.begin(), cores.end());
  cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
  int count = std::max(1, static_cast<int>(cores.size()));
  if (const int quota = quota_processors(); quota > 0) count = std::min(count, quota);
  return count;
#else
  return logical;
#endif
}

ThreadTeam::ThreadTeam(const ThreadTeamOptions& options) : options_(options) {
  if (options.threads < 0 || options.threads > 1024) {
    throw_error(ErrorCode::InvalidArgument, "a team of ", options.threads, " threads; it may have 1 to 1024");
  }
  size_ = options.threads == 0 ? default_thread_count() : options.threads;
  failures_.resize(static_cast<size_t>(size_));
  workers_.reserve(static_cast<size_t>(size_ - 1));
  try {
    for (int thread = 1; thread < size_; ++thread) workers_.emplace_back([this, thread] { work(thread); });
  } catch (const std::system_error& error) {
    stop();
    throw_error(ErrorCode::OutOfMemory, "the system refuses a team of ", size_, " threads: ", error.what());
  }
}

ThreadTeam::~ThreadTeam() {
  stop();
}

void ThreadTeam::stop() {
  stopping_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

void ThreadTeam::run_erased(Function function, void* context) {
  if (busy_.exchange(true, std::memory_order_acquire)) {
    throw_error(ErrorCode::Internal, "a parallel region inside, or beside, another of the same thread team");
  }
  function_ = function;
  context_ = context;
  if (size_ > 1) {
    running_.store(size_ - 1, std::memory_order_relaxed);
    // Sequentially consistent with wait_for_work(): either this sees the sleeper, or the sleeper this epoch.
    epoch_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) epoch_.notify_all();
  }
  call(0);
  if (size_ > 1) spin_until([&] { return running_.load(std::memory_order_acquire) == 0; });
  const bool failed = failed_.exchange(false, std::memory_order_relaxed);
  std::exception_ptr first;
  if (failed) {
    for (std::exception_ptr& failure : failures_) {
      if (!first) first = failure;
      failure = nullptr;
    }
  }
  busy_.store(false, std::memory_order_release);
  if (first) std::rethrow_exception(first);
}

void ThreadTeam::call(int thread) noexcept {
  try {
    function_(context_, thread);
  } catch (...) {
    failures_[static_cast<size_t>(thread)] = std::current_exception();
    failed_.store(true, std::memory_order_relaxed);
  }
}

void ThreadTeam::work(int thread) {
  uint32_t seen = 0;
  while (true) {
    seen = wait_for_work(seen);
    if (stopping_.load(std::memory_order_acquire)) return;
    call(thread);
    running_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

uint32_t ThreadTeam::wait_for_work(uint32_t seen) {
  const auto moved = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
  bool found = spin(moved, std::chrono::microseconds(options_.spin_us));
  // Within Hot the caller computes alone for a while (sampling, a small operator) and soon comes back.
  if (!found && hot_.load(std::memory_order_relaxed) > 0) {
    found = spin(moved, std::chrono::microseconds(options_.hot_spin_us));
  }
  if (!found) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    epoch_.wait(seen, std::memory_order_seq_cst);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }
  return epoch_.load(std::memory_order_acquire);
}

void ThreadTeam::barrier() {
  if (size_ == 1) return;
  const uint32_t generation = generation_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.store(generation + 1, std::memory_order_release);
    return;
  }
  spin_until([&] { return generation_.load(std::memory_order_acquire) != generation; });
}

}  // namespace quern::cpu
