// A change of a hidden state through a narrow place, learned.
#pragma once

#include <string>
#include <vector>

#include "calibrate/train/optimizer.h"

namespace quern::calibrate::train {

// y = x + up silu(down x). Begins as the identity: up = 0. Not thread-safe.
class Adapter {
 public:
  // `name`: "exits.4.adapter"; `seed`: of the first matrix.
  Adapter(const std::string& name, int64_t width, int64_t rank, uint64_t seed);
  // Adds the change of x [rows, width] to y; x stays valid until backward().
  void forward(const float* x, int64_t rows, float* y);
  // Adds to the gradients of the matrices alone, from that of the loss by y.
  void backward(const float* dy, int64_t rows);
  std::vector<Parameter*> parameters() { return {&down_, &up_}; }

 private:
  int64_t width_, rank_;
  Parameter down_, up_;  // [rank, width], [width, rank]
  const float* input_ = nullptr;
  std::vector<float> inner_, active_, change_;  // [rows, rank]
};

}  // namespace quern::calibrate::train
