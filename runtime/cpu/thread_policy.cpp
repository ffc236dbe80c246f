#include "runtime/cpu/thread_policy.h"

#include <algorithm>

namespace quern::cpu {
namespace {

// Some time slices of the scheduler, so that a window sees what it gives and takes.
constexpr double kWindowSeconds = 0.015;
constexpr double kDisturbed = 0.1;  // share of the time spent in waits that nothing explains
constexpr double kBetter = 1.05;
constexpr int kLongestWait = 128;

}  // namespace

ThreadPolicy::ThreadPolicy(int most, int first)
    : most_(most),
      threads_(first > 0 ? std::min(first, most) : most),
      fewer_{.wait = 1, .first = 1, .left = 1},
      more_{.wait = 16, .first = 16, .left = 16} {}

void ThreadPolicy::record(double work, double seconds, double stalled) {
  if (most_ == 1) return;
  work_ += work;
  seconds_ += seconds;
  stalled_ += stalled;
  if (seconds_ < kWindowSeconds) return;
  decide(work_ / seconds_, stalled_ > kDisturbed * seconds_);
  work_ = seconds_ = stalled_ = 0;
}

void ThreadPolicy::decide(double rate, bool disturbed) {
  if (trial_ != 0 && !passed_trial(rate)) return;
  rate_before_ = rate;
  if (disturbed && threads_ > 1 && --fewer_.left <= 0) {
    begin_trial(-1);
  } else if (!disturbed && threads_ < most_ && --more_.left <= 0) {
    begin_trial(1);
  }
}

bool ThreadPolicy::passed_trial(double rate) {
  Direction& direction = trial_ < 0 ? fewer_ : more_;
  const bool better = rate > kBetter * rate_before_;
  if (!better) threads_ -= trial_;
  direction.wait = better ? direction.first : std::min(2 * direction.wait, kLongestWait);
  direction.left = direction.wait;
  trial_ = 0;
  return better;
}

void ThreadPolicy::begin_trial(int step) {
  threads_ += step;
  trial_ = step;
}

}  // namespace quern::cpu
