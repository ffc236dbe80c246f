#include "passes/quantize/cholesky.h"

#include <algorithm>
#include <cmath>

#include "ir/parallel_for.h"

namespace quern::passes {

using calibrate::SquareMatrix;

namespace {

// Four partial sums, so that the compiler may use vectors.
double dot(const double* a, const double* b, int64_t count) {
  double sums[4] = {};
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int64_t j = 0; j < 4; ++j) sums[j] += a[i + j] * b[i + j];
  }
  double rest = 0;
  for (; i < count; ++i) rest += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]) + rest;
}

}  // namespace

bool cholesky(SquareMatrix& matrix) {
  const int64_t n = matrix.size;
  double* a = matrix.elements.data();
  for (int64_t j = 0; j < n; ++j) {
    double* row = a + j * n;
    const double diagonal = row[j] - dot(row, row, j);
    if (!(diagonal > 0) || !std::isfinite(diagonal)) return false;
    row[j] = std::sqrt(diagonal);
    const double scale = 1 / row[j];
    const double* pivot = row;
    parallel_for(n - j - 1, {.least = std::max<int64_t>(1, 65536 / (j + 1))},
                 [&](int64_t first, int64_t count) {
                   for (int64_t i = j + 1 + first; i < j + 1 + first + count; ++i) {
                     a[i * n + j] = (a[i * n + j] - dot(a + i * n, pivot, j)) * scale;
                   }
                 });
  }
  return true;
}

void solve(const SquareMatrix& lower, std::span<double> b) {
  const int64_t n = lower.size;
  const double* a = lower.elements.data();
  for (int64_t i = 0; i < n; ++i) {
    b[static_cast<size_t>(i)] = (b[static_cast<size_t>(i)] - dot(a + i * n, b.data(), i)) / a[i * n + i];
  }
  // Down the columns of L, so that memory is read along rows.
  for (int64_t i = n; i-- > 0;) {
    const double x = b[static_cast<size_t>(i)] / a[i * n + i];
    b[static_cast<size_t>(i)] = x;
    for (int64_t j = 0; j < i; ++j) b[static_cast<size_t>(j)] -= x * a[i * n + j];
  }
}

SquareMatrix inverse_upper(const SquareMatrix& lower) {
  const int64_t n = lower.size;
  SquareMatrix inverse(n);
  // Column by column of the identity; the columns are independent.
  parallel_for(n, {.least = std::max<int64_t>(1, 262144 / std::max<int64_t>(1, n * n))},
               [&](int64_t first, int64_t count) {
                 for (int64_t c = first; c < first + count; ++c) {
                   const std::span<double> row(inverse.elements.data() + c * n, static_cast<size_t>(n));
                   row[static_cast<size_t>(c)] = 1;
                   solve(lower, row);
                 }
               });
  if (!cholesky(inverse)) return SquareMatrix(0);
  SquareMatrix upper(n);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; ++j) upper.at(j, i) = inverse.at(i, j);
  }
  return upper;
}

}  // namespace quern::passes
