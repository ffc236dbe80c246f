#include "calibrate/train/adapter.h"

#include <cmath>
#include <random>

#include "calibrate/train/matrix.h"

namespace quern::calibrate::train {

Adapter::Adapter(const std::string& name, int64_t width, int64_t rank, uint64_t seed)
    : width_(width),
      rank_(rank),
      down_(name + ".down.weight", Shape{rank, width}, true),
      up_(name + ".up.weight", Shape{width, rank}, true) {
  // Uniform by hand: the library's distributions differ between implementations.
  std::mt19937_64 random(seed);
  const double spread = std::sqrt(3.0 / static_cast<double>(width_));
  for (float& v : down_.value) {
    v = static_cast<float>(spread * (2 * static_cast<double>(random() >> 11) * 0x1.0p-53 - 1));
  }
}

void Adapter::forward(const float* x, int64_t rows, float* y) {
  input_ = x;
  inner_.resize(static_cast<size_t>(rows * rank_));
  active_.resize(inner_.size());
  multiply_transposed(x, down_.value.data(), inner_.data(), rows, rank_, width_, Into::Set);
  for (size_t i = 0; i < inner_.size(); ++i) active_[i] = inner_[i] / (1 + std::exp(-inner_[i]));
  multiply_transposed(active_.data(), up_.value.data(), y, rows, width_, rank_, Into::Add);
}

void Adapter::backward(const float* dy, int64_t rows) {
  transposed_multiply(dy, active_.data(), up_.gradient.data(), width_, rank_, rows, Into::Add);
  change_.resize(active_.size());
  multiply(dy, up_.value.data(), change_.data(), rows, rank_, width_, Into::Set);
  for (size_t i = 0; i < change_.size(); ++i) {
    const float z = inner_[i], s = 1 / (1 + std::exp(-z));
    change_[i] *= s * (1 + z * (1 - s));
  }
  transposed_multiply(change_.data(), input_, down_.gradient.data(), rank_, width_, rows, Into::Add);
}

}  // namespace quern::calibrate::train
