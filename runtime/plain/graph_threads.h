// How many of OpenMP's threads the runs of one graph use.
#pragma once

#include <functional>
#include <mutex>
#include <optional>

#include "runtime/cpu/thread_policy.h"

namespace quern::runtime::plain {

// oneDNN's threads meet after every operator, and wait for one another by watching: where other programs have
// the processors, each meeting takes a time slice or more. Runs are measured, and given fewer threads while
// that is faster (thread_policy.h). They begin with as many as there are processors free. Thread-safe.
class GraphThreads {
 public:
  // `work`: in proportion to what a run costs, such as the elements of its inputs.
  void run(double work, const std::function<void()>& body);

 private:
  std::mutex mutex_;
  std::optional<cpu::ThreadPolicy> policy_;  // from the first run on
};

}  // namespace quern::runtime::plain
