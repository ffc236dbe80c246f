// What an exit head makes of a hidden state: an adapter, if it has one, and a norm.
#pragma once

#include <optional>

#include "calibrate/train/adapter.h"
#include "calibrate/train/heads.h"

namespace quern::calibrate::train {

// y = norm(x + up silu(down x)) weight + bias, with the RMS norm or the layer norm of the model's final norm.
class ExitForm final : public HeadForm {
 public:
  struct Options {
    bool layer_norm = false;
    double epsilon = 1e-5;
    int64_t rank = 0;   // of the adapter; 0: none
    uint64_t seed = 0;  // of its first matrix; the second one begins as zeros
  };
  // `name`: "exits.4". `norm`, and `bias` of layer norms, are the beginning.
  ExitForm(const std::string& name, const Tensor& norm, const Tensor* bias, const Options& options);
  void forward(const float* x, int64_t rows, float* y) override;
  void backward(float* dy, int64_t rows) override;
  std::vector<Parameter*> parameters() override;

 private:
  void normalize(int64_t row, float* y);
  void backward_norm(int64_t row, float* dy);

  Options options_;
  int64_t width_;
  Parameter norm_;
  std::optional<Parameter> bias_;
  std::optional<Adapter> adapter_;
  std::vector<float> normed_;  // [rows, width], before weight and bias
  std::vector<float> factor_;  // [rows], 1 / deviation
};

}  // namespace quern::calibrate::train
