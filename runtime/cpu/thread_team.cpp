#include "runtime/cpu/thread_team.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <system_error>

#include "ir/error.h"

#if defined(__linux__)
#include <sched.h>
#endif

namespace quern::cpu {
namespace {

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

// Hardware threads that this process may use.
int processor_count() {
#if defined(__linux__)
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) return std::max(1, CPU_COUNT(&mask));
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

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
  // With more threads than processors the one waited for may need this very processor.
  barrier_spin_ = std::chrono::microseconds(size_ <= processor_count() ? options.barrier_spin_us : 0);
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
  begin_epoch(size_);
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

void ThreadTeam::begin_epoch(int threads) {
  const uint64_t count = (epoch_.load(std::memory_order_relaxed) >> kThreadBits) + 1;
  epoch_.store(count << kThreadBits | static_cast<uint64_t>(threads), std::memory_order_release);
  work_point_.notify();
}

void ThreadTeam::run_erased(int threads, Function function, void* context) {
  if (threads < 1 || threads > size_) {
    throw_error(ErrorCode::Internal, "a parallel region of ", threads, " threads in a team of ", size_);
  }
  if (busy_.exchange(true, std::memory_order_acquire)) {
    throw_error(ErrorCode::Internal, "a parallel region inside, or beside, another of the same thread team");
  }
  function_ = function;
  context_ = context;
  active_ = threads;
  if (threads > 1) {
    running_.store(threads - 1, std::memory_order_relaxed);
    begin_epoch(threads);
  }
  call(0);
  if (threads > 1) {
    const int64_t stalled =
        end_point_.wait([&] { return running_.load(std::memory_order_acquire) == 0; }, barrier_spin_);
    if (stalled > 0) stalled_ns_.fetch_add(stalled, std::memory_order_relaxed);
  }
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
  uint64_t seen = 0;
  bool idle = false;
  while (true) {
    seen = wait_for_work(seen, idle);
    if (stopping_.load(std::memory_order_acquire)) return;
    // A region that this thread takes part in cannot end, and so no other begin, before it has.
    idle = static_cast<uint64_t>(thread) >= (seen & kThreadMask);
    if (idle) continue;
    call(thread);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) end_point_.notify();
  }
}

uint64_t ThreadTeam::wait_for_work(uint64_t seen, bool idle) {
  const auto moved = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
  bool found = !idle && WaitPoint::watch(moved, std::chrono::microseconds(options_.spin_us));
  // Within Hot the caller computes alone for a while (sampling, a small operator) and soon comes back.
  if (!found && !idle && hot_.load(std::memory_order_relaxed) > 0) {
    found = WaitPoint::watch(moved, std::chrono::microseconds(options_.hot_spin_us));
  }
  if (!found) work_point_.wait(moved, std::chrono::microseconds(0));
  return epoch_.load(std::memory_order_acquire);
}

void ThreadTeam::barrier() {
  if (active_ == 1) return;
  const uint32_t generation = generation_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == active_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.store(generation + 1, std::memory_order_release);
    barrier_point_.notify();
    return;
  }
  const int64_t stalled = barrier_point_.wait(
      [&] { return generation_.load(std::memory_order_acquire) != generation; }, barrier_spin_);
  if (stalled > 0) stalled_ns_.fetch_add(stalled, std::memory_order_relaxed);
}

}  // namespace quern::cpu
