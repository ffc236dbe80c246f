// Linear and Embedding of ai.quern (docs/canonical-graph.md), and the compile-time operators QuantizeWeight
// and PackWeight (ir/weight_ops.h).
#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "ir/activation_scheme.h"
#include "ir/weight_ops.h"
#include "runtime/reference/register.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

// Columns that share a scale where activations are quantized: the weight's groups, else the whole row.
int64_t activation_block(const RuntimeValue& weight, int64_t cols) {
  const QuantScheme* scheme = nullptr;
  if (const QuantizedTensor* quantized = weight.quantized()) scheme = &quantized->scheme;
  if (weight.packed() != nullptr && weight.packed()->spec().is_quantized())
    scheme = &weight.packed()->spec().scheme;
  if (scheme == nullptr || !is_integer(scheme->code)) return 0;
  return scheme->granularity == QuantScheme::Granularity::Group ? scheme->group_size : cols;
}

// Of a quantized or packed weight.
std::optional<Shape> shape_of(const RuntimeValue& weight) {
  if (const QuantizedTensor* quantized = weight.quantized()) return quantized->shape();
  if (weight.packed() != nullptr) return weight.packed()->shape();
  return {};
}

// A block of a row as its codes stand for it: the oracle of runtime/cpu/activations.h, the same divisions and
// roundings.
void round_block(std::span<float> x, const ActivationScheme& scheme) {
  using Kind = ActivationScheme::Kind;
  float least = 0, most = 0;
  for (const float value : x) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
  float scale = std::max(most, -least) / 127.0F, lowest = -127, highest = 127;
  if (scheme.kind == Kind::TokenAsymmetric) {
    scale = (most - least) / 255.0F;
    const float zero = scale > 0 ? std::nearbyint(std::clamp(-least / scale, 0.0F, 255.0F)) : 0.0F;
    lowest = -zero;
    highest = 255.0F - zero;
  } else if (scheme.kind == Kind::Static) {
    scale = scheme.scale;
    lowest = static_cast<float>(scheme.lowest);
    highest = static_cast<float>(scheme.highest);
  }
  if (!(scale > 0)) return;
  for (float& value : x) value = std::clamp(std::nearbyint(value / scale), lowest, highest) * scale;
}

Tensor quantized_rows(const Tensor& x, int64_t block, const ActivationScheme& scheme) {
  const int64_t cols = x.dim(-1);
  if (scheme.kind != ActivationScheme::Kind::Group) block = cols;
  std::vector<float> values = x.to_floats();
  const auto count = static_cast<int64_t>(values.size());
  for (int64_t row = 0; cols > 0 && row < count; row += cols) {
    for (int64_t first = 0; first < cols; first += block) {
      round_block(std::span(values).subspan(static_cast<size_t>(row + first),
                                            static_cast<size_t>(std::min(block, cols - first))),
                  scheme);
    }
  }
  return Tensor::from<float>(x.shape(), values);
}

// x [..., K] * weight [N, K]^T + bias [N], summed in double over k in order.
void run_linear(KernelContext& context) {
  const ActivationScheme scheme = activation_scheme(context.node());
  // Before input() makes floats of the codes.
  const std::optional<Shape> weight_shape = shape_of(context.value(1));
  const int64_t block = scheme.kind == ActivationScheme::Kind::None || !weight_shape
                            ? 0
                            : activation_block(context.value(1), weight_shape->back());
  const Tensor& x = context.input(0);
  const Tensor& weight = context.input(1);
  const Tensor* bias = context.optional_input(2);
  if (!is_floating(x.dtype()) || !is_floating(weight.dtype()))
    context.fail("x and the weight must be floats");
  if (x.rank() < 1 || weight.rank() != 2 || x.dim(-1) != weight.dim(1) ||
      (bias && bias->shape() != Shape{weight.dim(0)})) {
    context.fail("x ", to_string(x.shape()), ", weight ", to_string(weight.shape()), " and bias ",
                 bias ? to_string(bias->shape()) : "", " do not fit");
  }
  const int64_t n = weight.dim(0);
  const int64_t k = weight.dim(1);
  Shape shape = x.shape();
  shape.back() = n;
  std::vector<float> out = make_buffer<float>(context, shape);
  const Elements<float> rows(block > 0 ? quantized_rows(x, block, scheme) : x);
  const Elements<float> matrix(weight);
  const std::vector<float> addends = bias ? bias->to_floats() : std::vector<float>(static_cast<size_t>(n));
  const int64_t count = n == 0 ? 0 : static_cast<int64_t>(out.size()) / n;
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        sum += static_cast<double>(rows[row * k + l]) * static_cast<double>(matrix[j * k + l]);
      }
      const auto addend = static_cast<double>(addends[static_cast<size_t>(j)]);
      out[static_cast<size_t>(row * n + j)] = static_cast<float>(sum + addend);
    }
  }
  context.set_output(0, to_tensor(x.dtype(), shape, out));
}

// The row of a table [V, C], without dequantizing the others.
void copy_row(const RuntimeValue& table, const Tensor& dense, int64_t row, std::span<float> out) {
  if (table.packed() != nullptr) return table.packed()->dequantize_row(row, out);
  const auto count = static_cast<int64_t>(out.size());
  for (int64_t c = 0; c < count; ++c)
    out[static_cast<size_t>(c)] = static_cast<float>(dense.at(row * count + c));
}

void run_embedding(KernelContext& context) {
  const RuntimeValue& table = context.value(0);
  const Tensor dense = table.packed() != nullptr ? Tensor() : context.input(0);
  const Shape table_shape = table.packed() != nullptr ? table.packed()->shape() : dense.shape();
  const Tensor& ids = context.input(1);
  if (table_shape.size() != 2) context.fail("the table must have rank 2, not shape ", to_string(table_shape));
  Shape shape = ids.shape();
  shape.push_back(table_shape[1]);
  std::vector<float> out = make_buffer<float>(context, shape);
  const auto cols = static_cast<size_t>(table_shape[1]);
  for (int64_t i = 0; i < ids.size(); ++i) {
    const int64_t id = ids.int_at(i);
    if (id < 0 || id >= table_shape[0])
      context.fail("id ", id, " is outside the table of ", table_shape[0], " rows");
    copy_row(table, dense, id, std::span(out).subspan(static_cast<size_t>(i) * cols, cols));
  }
  context.set_output(0, to_tensor(DType::F32, shape, out));
}

void run_quantize_weight(KernelContext& context) {
  QuantizeOptions options = quantize_options(context.node());
  std::vector<float> importance;
  if (const Tensor* given = context.optional_input(1)) importance = given->to_floats();
  options.importance = importance;
  context.set_output(0, quantize(context.input(0), options));
}

void run_pack_weight(KernelContext& context) {
  const RuntimeValue& weight = context.value(0);
  if (const QuantizedTensor* quantized = weight.quantized()) return context.set_output(0, pack(*quantized));
  if (weight.packed() != nullptr) return context.set_output(0, weight);
  context.set_output(0, pack(context.input(0)));
}

}  // namespace

void register_weights(KernelTable& table) {
  const auto add = [&](std::string_view op, KernelFunction run) {
    table.add(kQuernDomain, op, {std::string(kReferenceImplementation), 1, run, nullptr});
  };
  add("Linear", run_linear);
  add("Embedding", run_embedding);
  add("QuantizeWeight", run_quantize_weight);
  add("PackWeight", run_pack_weight);
}

}  // namespace quern::runtime::reference
