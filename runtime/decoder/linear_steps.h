// Products with weights, grouped by their input.
#pragma once

#include <vector>

#include "runtime/cpu/linear.h"
#include "runtime/decoder/plan.h"

namespace quern::runtime {

// Where a group of products finds its encoded inputs: formats[i] begins after the ones before it.
struct Encoding {
  std::vector<cpu::ActivationFormat> formats;

  static int64_t byte_size(const std::vector<cpu::ActivationFormat>& formats, int64_t rows);
  // Lays out format `index` in the pass's memory.
  cpu::Activations place(const Pass& pass, int64_t rows, size_t index) const;
};

// Brings the input of a LinearStep into the form its kernels read.
class EncodeStep final : public Step {
 public:
  EncodeStep(Encoding encoding, Operand x);
  void run(const Pass& pass, int thread) const override;

 private:
  Encoding encoding_;
  Operand x_;
};

struct Product {
  const PackedTensor* weight = nullptr;
  const PackedTensor* up = nullptr;  // activation(W x) * (U x)
  const float* bias = nullptr;
  const float* up_bias = nullptr;
  cpu::Unary activation = cpu::Unary::Identity;
  Operand residual;  // added at the end, if defined
  Operand y;
  size_t format = 0;  // index into the encoding's
};

class LinearStep final : public Step {
 public:
  static constexpr size_t kMaxProducts = 8;
  LinearStep(Encoding encoding, std::vector<Product> products);
  void run(const Pass& pass, int thread) const override;
  int64_t bytes(const Pass& pass) const override;
  int64_t row_work() const override;
  std::string detail() const override;

 private:
  Encoding encoding_;
  std::vector<Product> products_;
};

}  // namespace quern::runtime
