#include "runtime/plain/graph_threads.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>

#include "runtime/plain/parallel.h"

namespace quern::runtime::plain {
namespace {

// Of the calling thread.
double processor_seconds() {
  timespec time{};
  if (::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Threads of all programs that run or could, this one left out: the fourth field of "0.5 0.4 0.3 3/217 4711".
int others_running() {
  std::ifstream file("/proc/loadavg");
  std::string field;
  for (int i = 0; i < 4; ++i) file >> field;
  return std::max(0, std::atoi(field.c_str()) - 1);
}

int free_processors(int most) {
  return std::clamp(most - others_running(), 1, most);
}

// OpenMP's number of threads for what the calling thread begins.
class ThreadCount {
 public:
  explicit ThreadCount(int threads) {
#if defined(_OPENMP)
    before_ = omp_get_max_threads();
    omp_set_num_threads(threads);
#else
    static_cast<void>(threads);
#endif
  }
  ~ThreadCount() {
#if defined(_OPENMP)
    omp_set_num_threads(before_);
#endif
  }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_ = 1;
};

}  // namespace

void GraphThreads::run(double work, const std::function<void()>& body) {
  const int threads = [&] {
    const std::lock_guard lock(mutex_);
    if (!policy_) policy_.emplace(most_shares(), free_processors(most_shares()));
    return policy_->threads();
  }();
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const double processor_start = processor_seconds();
  {
    const ThreadCount count(threads);
    body();
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  // While nobody else is there, this thread computes or watches all the time.
  const double away = seconds - (processor_seconds() - processor_start);
  const std::lock_guard lock(mutex_);
  if (threads == policy_->threads()) policy_->record(work, seconds, std::max(0.0, away));
}

}  // namespace quern::runtime::plain
