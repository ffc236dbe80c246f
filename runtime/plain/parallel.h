// Splits the loops of plain kernels over the threads that oneDNN uses: OpenMP's. Threads of another kind
// would compete with those, which keep watching for work some milliseconds after every product. One thread
// where the compiler has no OpenMP.
#pragma once

#include <cstdint>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace quern::runtime::plain {

// Threads that for_shares() may use: shares, and so pieces of scratch memory, that there are at most.
inline int most_shares() {
#if defined(_OPENMP)
  return omp_in_parallel() != 0 ? 1 : omp_get_max_threads();
#else
  return 1;
#endif
}

// Calls body(share, first, count) for parts of [0, indices) that do not overlap, share < most_shares(); on
// the calling thread alone where `indices` are fewer than two times `least`. The body must not throw.
template <class Body>
void for_shares(int64_t indices, int64_t least, const Body& body) {
#if defined(_OPENMP)
  if (indices >= 2 * least && most_shares() > 1) {
    // Always the whole team: libgomp ends the threads that a smaller one leaves out.
#pragma omp parallel
    {
      const int64_t share = omp_get_thread_num();
      const int64_t shares = omp_get_num_threads();
      const int64_t first = indices * share / shares;
      const int64_t end = indices * (share + 1) / shares;
      if (end > first) body(static_cast<int>(share), first, end - first);
    }
    return;
  }
#endif
  static_cast<void>(least);
  if (indices > 0) body(0, 0, indices);
}

// The same over rows of so many elements.
template <class Body>
void for_row_shares(int64_t rows, int64_t width, const Body& body) {
  constexpr int64_t kElements = int64_t{1} << 14;  // that are worth a thread
  for_shares(rows, (kElements + width - 1) / (width > 0 ? width : 1), body);
}

}  // namespace quern::runtime::plain
