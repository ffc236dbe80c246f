// Kernels over one row of features: norms, activations, element-wise arithmetic, rotary embedding. A row's
// result does not depend on the rows beside it.
#pragma once

#include <cstdint>

#include "runtime/cpu/unary.h"

namespace quern::cpu {

enum class BinaryOp : uint8_t { Add, Subtract, Multiply, Divide, Maximum, Minimum };

enum class ReduceOp : uint8_t { Sum, Mean, Max, Min, SumOfSquares };

// sum = x + skip + bias (skip and bias may be null, then sum = x), out = norm(sum) * weight + shift.
struct NormRow {
  const float* x = nullptr;
  const float* skip = nullptr;
  const float* bias = nullptr;
  const float* weight = nullptr;  // null: 1
  const float* shift = nullptr;   // null: 0
  float* sum = nullptr;           // null: not wanted; may be x or skip
  float* out = nullptr;           // null: not wanted; may be x
  int64_t size = 0;
  float epsilon = 0;
  float mean = 0;         // set: of sum; layer norm only
  float inverse_std = 0;  // set: 1 / sqrt(variance + epsilon), or of the mean square
};

struct RotaryRow {
  float* x = nullptr;          // [heads, head_size], rotated in place
  const float* cos = nullptr;  // [rotary_size / 2]
  const float* sin = nullptr;
  int64_t heads = 0;
  int64_t head_size = 0;
  int64_t rotary_size = 0;   // even, at most head_size
  bool interleaved = false;  // pairs (2i, 2i + 1) instead of (i, i + rotary_size / 2)
};

struct RowKernels {
  // x / sqrt(mean(x^2) + epsilon)
  void (*rms_norm)(NormRow& row);
  // (x - mean(x)) / sqrt(variance(x) + epsilon), the variance over n
  void (*layer_norm)(NormRow& row);
  // y may be x, everywhere below.
  void (*unary)(Unary op, const float* x, float* y, int64_t n);
  void (*binary)(BinaryOp op, const float* a, const float* b, float* y, int64_t n);
  void (*binary_scalar)(BinaryOp op, const float* a, float b, float* y, int64_t n);
  void (*scalar_binary)(BinaryOp op, float a, const float* b, float* y, int64_t n);
  // y = op(gate) * up
  void (*activate_multiply)(Unary op, const float* gate, const float* up, float* y, int64_t n);
  void (*softmax)(const float* x, float* y, int64_t n);
  float (*reduce)(ReduceOp op, const float* x, int64_t n);
  void (*rotate)(const RotaryRow& row);
};

// The kernels of active_isa(), or the reference's where that is forced (isa.h).
const RowKernels& row_kernels();
// Slow and obvious, in double precision: the oracle.
const RowKernels& reference_row_kernels();

}  // namespace quern::cpu
