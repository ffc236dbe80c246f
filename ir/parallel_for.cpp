#include "ir/parallel_for.h"

#include <algorithm>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace quern {

void parallel_for(int64_t count, const ParallelOptions& options,
                  const std::function<void(int64_t first, int64_t count)>& body) {
  const int64_t available =
      options.threads > 0 ? options.threads : std::max<int64_t>(1, std::thread::hardware_concurrency());
  const int64_t grain = std::max<int64_t>(1, options.grain);
  const int64_t grains = (count + grain - 1) / grain;
  const int64_t worth = count / std::max<int64_t>(1, options.least);
  const int64_t parts = std::clamp<int64_t>(std::min({worth, available, grains}), 1, available);
  std::vector<std::exception_ptr> failures(static_cast<size_t>(parts));
  const auto run = [&](int64_t part) {
    const int64_t first = grains * part / parts * grain;
    const int64_t end = std::min(count, grains * (part + 1) / parts * grain);
    try {
      if (end > first) body(first, end - first);
    } catch (...) {
      failures[static_cast<size_t>(part)] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<size_t>(parts));
    int64_t started = 1;
    try {
      for (; started < parts; ++started) threads.emplace_back(run, started);
    } catch (const std::system_error&) {
      // There are no more threads to be had: this one does their share.
    }
    run(0);
    for (int64_t part = started; part < parts; ++part) run(part);
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace quern
