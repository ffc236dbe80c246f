// Steps that compute each row by itself.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "runtime/decoder/plan.h"

namespace quern::runtime {

class RowStep : public Step {
 public:
  void run(const Pass& pass, int thread) const final {
    const cpu::Range range = cpu::part_of(pass.count(space), thread, pass.threads);
    for (int64_t row = range.begin; row < range.end; ++row) run_row(pass, row);
  }
  virtual void run_row(const Pass& pass, int64_t row) const = 0;
};

// Rows of a table by token id or by position.
class EmbeddingStep final : public RowStep {
 public:
  using Table = std::variant<Tensor, PackedTensor>;  // [V, C], a float type
  EmbeddingStep(Table table, bool by_position, Operand out);
  void run_row(const Pass& pass, int64_t row) const override;
  int64_t rows() const { return rows_; }

 private:
  Table table_;
  int64_t rows_;
  bool by_position_;
  Operand out_;
};

// RMS or layer norm of each group of `size` features, with residual sum.
class NormStep final : public RowStep {
 public:
  struct Options {
    bool layer = false;  // layer norm, else RMS norm
    float epsilon = 1e-5f;
    int64_t size = 0;  // features that are normalized together; divides the width
    const float* weight = nullptr;
    const float* shift = nullptr;
    const float* bias = nullptr;
  };
  // `skip`, `sum`, `mean` and `inverse_std` may be undefined.
  struct Operands {
    Operand x, skip, out, sum, mean, inverse_std;
  };
  NormStep(const cpu::RowKernels& kernels, const Options& options, const Operands& operands);
  void run_row(const Pass& pass, int64_t row) const override;

 private:
  const cpu::RowKernels& kernels_;
  Options options_;
  Operands at_;
};

class UnaryStep final : public RowStep {
 public:
  UnaryStep(const cpu::RowKernels& kernels, cpu::Unary op, Operand x, Operand y);
  void run_row(const Pass& pass, int64_t row) const override;

 private:
  const cpu::RowKernels& kernels_;
  cpu::Unary op_;
  Operand x_, y_;
};

// One side of an element-wise operation.
struct Side {
  enum class Kind : uint8_t {
    Rows,    // all features
    Spread,  // a feature for each group of the other side's features
    Vector,  // a constant, as wide as the result
    Scalar,
  };
  Kind kind = Kind::Rows;
  Operand rows;
  const float* vector = nullptr;
  float scalar = 0;
};

class BinaryStep final : public RowStep {
 public:
  // One side at most is Scalar or Spread, and not both are constant. `group`: features that share a Spread
  // one.
  BinaryStep(const cpu::RowKernels& kernels, cpu::BinaryOp op, Side a, Side b, Operand y, int64_t group);
  void run_row(const Pass& pass, int64_t row) const override;

 private:
  const cpu::RowKernels& kernels_;
  cpu::BinaryOp op_;
  Side a_, b_;
  Operand y_;
  int64_t group_;
};

// op(gate) * up
class GatedStep final : public RowStep {
 public:
  GatedStep(const cpu::RowKernels& kernels, cpu::Unary op, Operand gate, Operand up, Operand y);
  void run_row(const Pass& pass, int64_t row) const override;

 private:
  const cpu::RowKernels& kernels_;
  cpu::Unary op_;
  Operand gate_, up_, y_;
};

// Softmax over each group of `size` features.
class SoftmaxStep final : public RowStep {
 public:
  SoftmaxStep(const cpu::RowKernels& kernels, int64_t size, Operand x, Operand y);
  void run_row(const Pass& pass, int64_t row) const override;

 private:
  const cpu::RowKernels& kernels_;
  int64_t size_;
  Operand x_, y_;
};

// One feature of each group of `size`.
class ReduceStep final : public RowStep {
 public:
  ReduceStep(const cpu::RowKernels& kernels, cpu::ReduceOp op, int64_t size, Operand x, Operand y);
  void run_row(const Pass& pass, int64_t row) const override;

 private:
  const cpu::RowKernels& kernels_;
  cpu::ReduceOp op_;
  int64_t size_;
  Operand x_, y_;
};

class CopyStep final : public RowStep {
 public:
  CopyStep(Operand x, Operand y);
  void run_row(const Pass& pass, int64_t row) const override;

 private:
  Operand x_, y_;
};

// The selected rows of x.
class SelectRowsStep final : public Step {
 public:
  SelectRowsStep(Operand x, Operand y);
  void run(const Pass& pass, int thread) const override;

 private:
  Operand x_, y_;
};

// cos and sin of each row's angles, for all the Rotary operators with the same frequencies.
class RotaryTableStep final : public Step {
 public:
  struct Frequencies {
    std::vector<float> base;
    std::vector<float> extended;  // of sequences beyond the original context; empty: the same
    float scale = 1.0f;
    float extended_scale = 1.0f;
    bool operator==(const Frequencies&) const = default;
  };
  // out: [cos | sin], each as wide as the frequencies
  RotaryTableStep(Frequencies frequencies, Operand out);
  void run(const Pass& pass, int thread) const override;
  const Frequencies& frequencies() const { return frequencies_; }
  Operand out() const { return out_; }

 private:
  Frequencies frequencies_;
  Operand out_;
};

// How a Rotary operator turns its heads.
struct RotarySpec {
  Operand table;  // of a RotaryTableStep
  int64_t rotary_size = 0;
  int64_t head_size = 0;
  bool interleaved = false;
};
void rotate_row(const cpu::RowKernels& kernels, const RotarySpec& spec, const float* angles, float* x,
                int64_t heads);

class RotaryStep final : public RowStep {
 public:
  RotaryStep(const cpu::RowKernels& kernels, const RotarySpec& spec, Operand x, Operand y);
  void run_row(const Pass& pass, int64_t row) const override;

 private:
  const cpu::RowKernels& kernels_;
  RotarySpec spec_;
  Operand x_, y_;
};

}  // namespace quern::runtime
