// What every training needs: parameters with gradients, AdamW, a schedule of the learning rate.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ir/tensor.h"

namespace quern::calibrate::train {

// A tensor of f32 that is learned.
struct Parameter {
  Parameter(std::string its_name, Shape its_shape, bool does_decay);
  // From a tensor of any float type.
  Parameter(std::string its_name, const Tensor& from, bool does_decay);
  // One that stays as it is: without gradient and moments.
  static Parameter frozen(std::string its_name, const Tensor& from);

  Tensor tensor() const;  // a copy
  size_t size() const { return value.size(); }

  std::string name;
  Shape shape;
  std::vector<float> value;
  std::vector<float> gradient;
  std::vector<float> first, second;  // moments of the gradient
  bool decays;                       // weight decay: of matrices, not of biases and norms
};

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  double clip = 1.0;  // greatest norm of all gradients together; 0: any
};

// Loshchilov and Hutter, Decoupled Weight Decay Regularization (2019), algorithm 2.
class AdamW {
 public:
  explicit AdamW(const AdamWOptions& options) : options_(options) {}
  // Moves the parameters by their gradients and clears these.
  void step(std::span<Parameter* const> parameters, double learning_rate);
  int64_t steps() const { return steps_; }
  void resume_at(int64_t steps) { steps_ = steps; }

 private:
  AdamWOptions options_;
  int64_t steps_ = 0;
};

// Rises linearly to `peak` over `warm_up` steps, then falls to 0 by half a cosine. `step` from 0.
double cosine_rate(int64_t step, int64_t steps, int64_t warm_up, double peak);

}  // namespace quern::calibrate::train
