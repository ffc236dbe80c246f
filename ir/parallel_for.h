// Splits loops over all processors, for the rare long ones outside the kernels (packing and quantizing
// weights).
#pragma once

#include <cstdint>
#include <functional>

namespace quern {

struct ParallelOptions {
  int64_t grain = 1;  // a part is a multiple of this, except the last
  int64_t least = 1;  // indices that are worth a thread of their own
  int threads = 0;    // 0: as many as there are processors
};

// Runs body(first, count) over parts of [0, count) that do not overlap, the first part on the calling thread.
// The parts depend on the machine: results must not. The exception of the lowest part that threw leaves it,
// after all parts have ended.
void parallel_for(int64_t count, const ParallelOptions& options,
                  const std::function<void(int64_t first, int64_t count)>& body);

}  // namespace quern
