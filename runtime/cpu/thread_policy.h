// How many threads of a team a pass is worth while other programs compete for the processors.
//
// Threads that meet at a barrier some thousand times a second are as fast as the slowest: where another
// program holds one processor for a few milliseconds, all wait. With a processor taken for good, one thread
// fewer is then faster, though what it can do alone is less. The policy measures instead of guessing: while
// threads wait for one another far longer than their shares differ, it tries one fewer and stays there if
// that was faster; from time to time it tries one more. Undisturbed, it never leaves the full number.
//
// The number of threads never changes a result (see linear.h), so that what is measured here cannot either.
#pragma once

#include <cstdint>
#include <vector>

namespace quern::cpu {

class ThreadPolicy {
 public:
  // `first`: threads to begin with; 0: `most`.
  explicit ThreadPolicy(int most, int first = 0);

  // For the next pass.
  int threads() const { return threads_; }

  // That pass: `work` in any unit that is proportional to the time it takes, how long it took, and how long
  // threads waited beyond what differences between their shares explain (ThreadTeam::stalled_ns()).
  void record(double work, double seconds, double stalled);

 private:
  // Each way has its own patience: windows to wait before the next trial, more after each that failed.
  struct Direction {
    int wait;
    int first;
    int left;
  };
  void decide(double rate, bool disturbed);
  bool passed_trial(double rate);
  void begin_trial(int step);

  int most_;
  int threads_;
  // Since the last decision.
  double work_ = 0, seconds_ = 0, stalled_ = 0;
  int trial_ = 0;           // -1, 1: `threads_` is on trial, and was one more or one fewer before
  double rate_before_ = 0;  // of the number of threads before the trial
  Direction fewer_, more_;
};

}  // namespace quern::cpu
