#include "calibrate/train/exit_form.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "calibrate/train/matrix.h"

namespace quern::calibrate::train {

ExitForm::ExitForm(const std::string& name, const Tensor& norm, const Tensor* bias, const Options& options)
    : options_(options), width_(norm.size()), norm_(name + ".norm.weight", norm, false) {
  if (bias != nullptr) bias_.emplace(name + ".norm.bias", *bias, false);
  if (options.rank == 0) return;
  down_.emplace(name + ".adapter.down.weight", Shape{options.rank, width_}, true);
  up_.emplace(name + ".adapter.up.weight", Shape{width_, options.rank}, true);
  // Uniform by hand: the library's distributions differ between implementations.
  std::mt19937_64 random(options.seed);
  const double spread = std::sqrt(3.0 / static_cast<double>(width_));
  for (float& v : down_->value) {
    v = static_cast<float>(spread * (2 * static_cast<double>(random() >> 11) * 0x1.0p-53 - 1));
  }
}

// normed_ = x + up silu(down x), for now.
void ExitForm::adapt(const float* x, int64_t rows) {
  normed_.assign(x, x + rows * width_);
  if (!down_) return;
  inner_.resize(static_cast<size_t>(rows * options_.rank));
  active_.resize(inner_.size());
  multiply_transposed(x, down_->value.data(), inner_.data(), rows, options_.rank, width_, Into::Set);
  for (size_t i = 0; i < inner_.size(); ++i) active_[i] = inner_[i] / (1 + std::exp(-inner_[i]));
  multiply_transposed(active_.data(), up_->value.data(), normed_.data(), rows, width_, options_.rank,
                      Into::Add);
}

void ExitForm::normalize(int64_t row, float* y) {
  float* x = normed_.data() + row * width_;
  const auto n = static_cast<double>(width_);
  double mean = 0, squares = 0;
  if (options_.layer_norm) {
    for (int64_t i = 0; i < width_; ++i) mean += x[i] / n;
  }
  for (int64_t i = 0; i < width_; ++i) squares += (x[i] - mean) * (x[i] - mean);
  const auto factor = static_cast<float>(1 / std::sqrt(squares / n + options_.epsilon));
  factor_[static_cast<size_t>(row)] = factor;
  for (int64_t i = 0; i < width_; ++i) {
    const auto at = static_cast<size_t>(i);
    x[i] = (x[i] - static_cast<float>(mean)) * factor;
    y[i] = x[i] * norm_.value[at] + (bias_ ? bias_->value[at] : 0);
  }
}

void ExitForm::forward(const float* x, int64_t rows, float* y) {
  input_ = x;
  adapt(x, rows);
  factor_.resize(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row) normalize(row, y + row * width_);
}

// dy by y becomes that by the norm's input: (d - [mean(d)] - h mean(d h)) / deviation, with d = dy weight and
// h the normalized row.
void ExitForm::backward_norm(int64_t row, float* dy) {
  const float* h = normed_.data() + row * width_;
  const auto n = static_cast<double>(width_);
  double sum = 0, along = 0;
  for (int64_t i = 0; i < width_; ++i) {
    const auto at = static_cast<size_t>(i);
    norm_.gradient[at] += dy[i] * h[i];
    if (bias_) bias_->gradient[at] += dy[i];
    dy[i] *= norm_.value[at];
    sum += dy[i];
    along += static_cast<double>(dy[i]) * h[i];
  }
  const double mean = options_.layer_norm ? sum / n : 0;
  for (int64_t i = 0; i < width_; ++i) {
    dy[i] = static_cast<float>((dy[i] - mean - h[i] * along / n) * factor_[static_cast<size_t>(row)]);
  }
}

void ExitForm::backward(float* dy, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) backward_norm(row, dy + row * width_);
  if (!down_) return;
  const int64_t rank = options_.rank;
  transposed_multiply(dy, active_.data(), up_->gradient.data(), width_, rank, rows, Into::Add);
  change_.resize(active_.size());
  multiply(dy, up_->value.data(), change_.data(), rows, rank, width_, Into::Set);
  for (size_t i = 0; i < change_.size(); ++i) {
    const float z = inner_[i], s = 1 / (1 + std::exp(-z));
    change_[i] *= s * (1 + z * (1 - s));
  }
  transposed_multiply(change_.data(), input_, down_->gradient.data(), rank, width_, rows, Into::Add);
}

std::vector<Parameter*> ExitForm::parameters() {
  std::vector<Parameter*> all = {&norm_};
  for (std::optional<Parameter>* each : {&bias_, &down_, &up_}) {
    if (*each) all.push_back(&**each);
  }
  return all;
}

}  // namespace quern::calibrate::train
