// The processor's cores, dealt out to threads that shall not get in each other's way.
#pragma once

#include <vector>

namespace quern::runtime {

struct CoreSet {
  std::vector<int> processors;  // as the system counts them: all hardware threads of the cores
  int cores = 0;
};

// The cores that this process may use (its affinity mask, and no more than its control group's quota pays
// for), in `count` neighbouring parts, equal but for one. Throws Error{InvalidArgument} where there are fewer
// cores than parts, naming both.
std::vector<CoreSet> split_cores(int count);

// The calling thread, and all that it starts from now on, runs on these cores alone. Throws
// Error{Unsupported} where the system refuses.
void pin_this_thread(const CoreSet& cores);

}  // namespace quern::runtime
