#include "passes/quantize/importance.h"

#include <algorithm>

namespace quern::passes {

Tensor importance_of(const std::vector<double>& squares) {
  constexpr double kLeast = 1e-4;
  double mean = 0;
  for (const double square : squares) mean += square / static_cast<double>(squares.size());
  Tensor importance = Tensor::zeros(DType::F32, {static_cast<int64_t>(squares.size())});
  for (size_t i = 0; i < squares.size(); ++i)
    importance.set(static_cast<int64_t>(i), mean > 0 ? std::max(squares[i] / mean, kLeast) : 1.0);
  return importance;
}

}  // namespace quern::passes
