// Sums of products of activations: H = sum over tokens of x x^T.
#pragma once

#include <memory>
#include <vector>

#include "calibrate/activation_runner.h"

namespace quern::calibrate {

// A square matrix of doubles, row-major.
struct SquareMatrix {
  int64_t size = 0;
  std::vector<double> elements;

  SquareMatrix() = default;
  explicit SquareMatrix(int64_t n) : size(n), elements(static_cast<size_t>(n * n)) {}
  double& at(int64_t i, int64_t j) { return elements[static_cast<size_t>(i * size + j)]; }
  double at(int64_t i, int64_t j) const { return elements[static_cast<size_t>(i * size + j)]; }
  static int64_t bytes(int64_t n) { return n * n * 8; }
};

// Adds up products of activations by the runtime's own matrix kernels.
class MomentSummer {
 public:
  explicit MomentSummer(int threads = 0);
  ~MomentSummer();

  // sum[i][j] += a_i . b_j over the rows of both, which are as many; a and b have the width of the sum. Each
  // call's products are summed in float, over one window, and the windows in double.
  void add(const std::vector<float>& a, const std::vector<float>& b, int64_t rows, SquareMatrix& sum);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Rows copied out of a view, one after another.
std::vector<float> copy_rows(const ActivationRows& rows);

}  // namespace quern::calibrate
