#include "calibrate/train/exit_form.h"

#include <cmath>

namespace quern::calibrate::train {

ExitForm::ExitForm(const std::string& name, const Tensor& norm, const Tensor* bias, const Options& options)
    : options_(options), width_(norm.size()), norm_(name + ".norm.weight", norm, false) {
  if (bias != nullptr) bias_.emplace(name + ".norm.bias", *bias, false);
  if (options.rank > 0) adapter_.emplace(name + ".adapter", width_, options.rank, options.seed);
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
  normed_.assign(x, x + rows * width_);
  if (adapter_) adapter_->forward(x, rows, normed_.data());
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
  if (adapter_) adapter_->backward(dy, rows);
}

std::vector<Parameter*> ExitForm::parameters() {
  std::vector<Parameter*> all = {&norm_};
  if (bias_) all.push_back(&*bias_);
  if (!adapter_) return all;
  for (Parameter* each : adapter_->parameters()) all.push_back(each);
  return all;
}

}  // namespace quern::calibrate::train
