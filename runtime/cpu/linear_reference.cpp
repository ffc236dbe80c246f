// The oracle of linear(): one output at a time, in double precision, from dequantized weights.
#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/cpu/linear_dispatch.h"

namespace quern::cpu {
namespace {

double unary_reference(Unary function, double x) {
  switch (function) {
    case Unary::Identity:
      return x;
    case Unary::Relu:
      return x < 0 ? 0 : x;
    case Unary::Silu:
      return x / (1 + std::exp(-x));
    case Unary::Gelu:
      return 0.5 * x * std::erfc(-x * std::sqrt(0.5));
    case Unary::GeluTanh:
      return 0.5 * x * (1 + std::tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
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
  return x;
}

double dot(const std::vector<float>& weights, const float* x) {
  double sum = 0;
  for (size_t k = 0; k < weights.size(); ++k) sum += double{weights[k]} * double{x[k]};
  return sum;
}

}  // namespace

void linear_reference(const LinearOp& op, const TileRange& range) {
  const PackedSpec& spec = op.weight->spec();
  std::vector<float> weights(static_cast<size_t>(spec.cols));
  std::vector<float> up_weights(op.up != nullptr ? weights.size() : 0);
  const int64_t end = std::min(spec.rows, range.tile_end * PackedSpec::kTile);
  for (int64_t n = range.tile_begin * PackedSpec::kTile; n < end; ++n) {
    op.weight->dequantize_row(n, weights);
    if (op.up != nullptr) op.up->dequantize_row(n, up_weights);
    for (int64_t i = range.row_begin; i < range.row_end; ++i) {
      const int64_t source = op.input_rows != nullptr ? op.input_rows[i] : i;
      const int64_t target = op.output_rows != nullptr ? op.output_rows[i] : i;
      const auto* x =
          reinterpret_cast<const float*>(op.input->codes + source * op.input->format.row_stride());
      double value = dot(weights, x) + (op.bias != nullptr ? op.bias[n] : 0.0F);
      value = unary_reference(op.activation, value);
      if (op.up != nullptr) value *= dot(up_weights, x) + (op.up_bias != nullptr ? op.up_bias[n] : 0.0F);
      if (op.row_scale != nullptr) value *= op.row_scale[i];
      if (op.residual != nullptr) value += op.residual[target * op.residual_stride + n];
      op.y[target * op.y_stride + n] = static_cast<float>(value);
    }
  }
}

}  // namespace quern::cpu
