// The oracle of row_kernels.h: each formula as it is written, in double precision, and the choice among
// kernels.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "runtime/cpu/dispatch.h"
#include "runtime/cpu/isa.h"
#include "runtime/cpu/row_kernels.h"

namespace quern::cpu {

QUERN_DECLARE_KERNELS(RowKernels, row_kernels)

namespace {

std::vector<double> summed(const NormRow& row) {
  std::vector<double> v(static_cast<size_t>(row.size));
  for (size_t i = 0; i < v.size(); ++i) {
    v[i] = row.x[i];
    if (row.skip != nullptr) v[i] += row.skip[i];
    if (row.bias != nullptr) v[i] += row.bias[i];
    // As it is stored: whoever norms a stored sum gets the same.
    v[i] = static_cast<float>(v[i]);
  }
  return v;
}

void write(const NormRow& row, const std::vector<double>& v, double mean, double factor) {
  for (size_t i = 0; i < v.size(); ++i) {
    if (row.sum != nullptr) row.sum[i] = static_cast<float>(v[i]);
    if (row.out == nullptr) continue;
    const double weight = row.weight != nullptr ? row.weight[i] : 1.0;
    const double shift = row.shift != nullptr ? row.shift[i] : 0.0;
    row.out[i] = static_cast<float>((v[i] - mean) * factor * weight + shift);
  }
}

void rms_norm(NormRow& row) {
  const std::vector<double> v = summed(row);
  double squares = 0;
  for (const double x : v) squares += x * x;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(row.size) + row.epsilon);
  row.inverse_std = static_cast<float>(factor);
  write(row, v, 0, factor);
}

void layer_norm(NormRow& row) {
  const std::vector<double> v = summed(row);
  double mean = 0, squares = 0;
  for (const double x : v) mean += x / static_cast<double>(row.size);
  for (const double x : v) squares += (x - mean) * (x - mean);
  const double factor = 1 / std::sqrt(squares / static_cast<double>(row.size) + row.epsilon);
  row.mean = static_cast<float>(mean);
  row.inverse_std = static_cast<float>(factor);
  write(row, v, mean, factor);
}

double apply(Unary op, double x) {
  switch (op) {
    case Unary::Identity:
      return x;
    case Unary::Relu:
      return x < 0 ? 0 : x;
    case Unary::Silu:
      return x / (1 + std::exp(-x));
    case Unary::Gelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Unary::GeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    case Unary::GeluQuick:
      return x / (1 + std::exp(-1.702 * x));
    case Unary::Sigmoid:
      return 1 / (1 + std::exp(-x));
    case Unary::Tanh:
      return std::tanh(x);
    case Unary::Erf:
      return std::erf(x);
    case Unary::Exp:
      return std::exp(x);
  }
  return 0;
}

double apply(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::Add:
      return a + b;
    case BinaryOp::Subtract:
      return a - b;
    case BinaryOp::Multiply:
      return a * b;
    case BinaryOp::Divide:
      return a / b;
    case BinaryOp::Maximum:
      return a > b ? a : b;
    case BinaryOp::Minimum:
      return a < b ? a : b;
  }
  return 0;
}

void unary(Unary op, const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(apply(op, x[i]));
}

void binary(BinaryOp op, const float* a, const float* b, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(apply(op, a[i], b[i]));
}

void binary_scalar(BinaryOp op, const float* a, float b, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(apply(op, a[i], b));
}

void scalar_binary(BinaryOp op, float a, const float* b, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(apply(op, a, b[i]));
}

void activate_multiply(Unary op, const float* gate, const float* up, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(apply(op, gate[i]) * up[i]);
}

float reduce(ReduceOp op, const float* x, int64_t n) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double sum = 0, squares = 0, top = -kInfinity, bottom = kInfinity;
  for (int64_t i = 0; i < n; ++i) {
    const double v = x[i];
    sum += v;
    squares += v * v;
    top = std::max(top, v);
    bottom = std::min(bottom, v);
  }
  switch (op) {
    case ReduceOp::Sum:
      return static_cast<float>(sum);
    case ReduceOp::Mean:
      return static_cast<float>(sum / static_cast<double>(n));
    case ReduceOp::Max:
      return static_cast<float>(top);
    case ReduceOp::Min:
      return static_cast<float>(bottom);
    case ReduceOp::SumOfSquares:
      break;
  }
  return static_cast<float>(squares);
}

void softmax(const float* x, float* y, int64_t n) {
  const double top = reduce(ReduceOp::Max, x, n);
  double total = 0;
  for (int64_t i = 0; i < n; ++i) total += std::exp(x[i] - top);
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(std::exp(x[i] - top) / total);
}

void rotate(const RotaryRow& row) {
  const int64_t pairs = row.rotary_size / 2;
  for (int64_t h = 0; h < row.heads; ++h) {
    float* x = row.x + h * row.head_size;
    for (int64_t i = 0; i < pairs; ++i) {
      float& first = x[row.interleaved ? 2 * i : i];
      float& second = x[row.interleaved ? 2 * i + 1 : i + pairs];
      const double a = first, b = second, c = row.cos[i], s = row.sin[i];
      first = static_cast<float>(a * c - b * s);
      second = static_cast<float>(b * c + a * s);
    }
  }
}

}  // namespace

const RowKernels& reference_row_kernels() {
  static constexpr RowKernels kKernels = {rms_norm,      layer_norm,        unary,   binary, binary_scalar,
                                          scalar_binary, activate_multiply, softmax, reduce, rotate};
  return kKernels;
}

const RowKernels& row_kernels() {
  return reference_forced() ? reference_row_kernels() : row_kernels(active_isa());
}

}  // namespace quern::cpu
