// Row statistics, which normalizations of several domains share.
#pragma once

#include <vector>

#include "ir/tensor.h"
#include "runtime/kernel_context.h"

namespace quern::runtime::reference {

struct Moments {
  double mean = 0;
  double variance = 0;  // of the population
  double mean_square = 0;
};
Moments moments(const double* row, int64_t count);

struct NormResult {
  std::vector<double> values;  // normalised, in the order of x
  std::vector<double> means;   // by row
  std::vector<double> inverse_deviations;
};

// Rows of `row_length` consecutive elements of x: (x - mean) / sqrt(variance + epsilon), or without
// `subtract_mean` x / sqrt(mean of squares + epsilon).
NormResult normalize_rows(const KernelContext& context, const Tensor& x, int64_t row_length,
                          bool subtract_mean, double epsilon);

// normalized * scale [+ bias], both broadcast to it; of the dtype of `normalized`.
Tensor scale_and_shift(const KernelContext& context, const Tensor& normalized, const Tensor& scale,
                       const Tensor* bias);

}  // namespace quern::runtime::reference
