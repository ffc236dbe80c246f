// com.microsoft: operators on quantized tensors with a scale and a zero point each, as static quantization of
// convolutional networks leaves them. Each computes on the real values and quantizes the result.
#include <algorithm>
#include <cmath>

#include "runtime/reference/axis.h"
#include "runtime/reference/functions.h"
#include "runtime/reference/matmul.h"
#include "runtime/reference/quantization.h"
#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

float scale_of(KernelContext& context, size_t input) {
  const Tensor& scale = context.input(input);
  if (scale.size() != 1) context.unsupported("input ", input, " holds more than one scale");
  return static_cast<float>(scale.at(0));
}

int64_t zero_of(KernelContext& context, size_t input) {
  return context.has_input(input) ? int_scalar(context, input) : 0;
}

// The real values of three inputs in a row: codes, scale, zero point.
std::vector<double> real_values(KernelContext& context, size_t input) {
  const Tensor& codes = context.input(input);
  const double scale = scale_of(context, input + 1);
  const auto zero = static_cast<double>(zero_of(context, input + 2));
  std::vector<double> values;
  values.reserve(static_cast<size_t>(codes.size()));
  for (int64_t i = 0; i < codes.size(); ++i) {
    values.push_back((static_cast<double>(codes.int_at(i)) - zero) * scale);
  }
  return values;
}

// Output 0 from real values, by the scale at `input` and the zero point behind it.
void set_quantized(KernelContext& context, const Shape& shape, const std::vector<double>& values,
                   size_t input, DType dtype) {
  const float scale = scale_of(context, input);
  const int64_t zero = zero_of(context, input + 1);
  Tensor out = context.make(dtype, shape);
  const Quantizer quantizer{.dtype = dtype};
  for (size_t i = 0; i < values.size(); ++i) {
    quantizer.store(out, static_cast<int64_t>(i), static_cast<float>(values[i]), scale, zero);
  }
  context.set_output(0, std::move(out));
}

// The same, but the zero point is added before the rounding: another code than QuantizeLinear's where a value
// lies half-way between two and the zero point is odd.
void set_rounded_with_zero(KernelContext& context, const Shape& shape, const std::vector<double>& values,
                           size_t input, DType dtype) {
  const double scale = scale_of(context, input);
  const auto zero = static_cast<double>(zero_of(context, input + 1));
  const bool is_signed = is_signed_integer(dtype);
  const double lowest = is_signed ? -128 : 0, highest = is_signed ? 127 : 255;
  Tensor out = context.make(dtype, shape);
  for (size_t i = 0; i < values.size(); ++i) {
    const double code = std::nearbyint(static_cast<float>(values[i] / scale + zero));
    out.set(static_cast<int64_t>(i), std::isnan(code) ? lowest : std::clamp(code, lowest, highest));
  }
  context.set_output(0, std::move(out));
}

// (A, scale, zero?, B, scale, zero?, C scale, zero?)
template <class Op>
void run_binary(KernelContext& context) {
  const std::vector<double> a = real_values(context, 0);
  const std::vector<double> b = real_values(context, 3);
  const Shape& shape_a = context.input(0).shape();
  const Shape& shape_b = context.input(3).shape();
  const Shape shape = broadcast_shapes(shape_a, shape_b);
  context.checked_count(DType::F64, shape);
  std::vector<double> out;
  for_each_offset<2>(shape, {broadcast_strides(shape_a, shape), broadcast_strides(shape_b, shape)},
                     [&](int64_t i, int64_t j) {
                       out.push_back(Op{}(a[static_cast<size_t>(i)], b[static_cast<size_t>(j)]));
                     });
  set_rounded_with_zero(context, shape, out, 6, context.input(0).dtype());
}

// (X, scale, zero?, Y scale, zero?)
template <class Op>
void run_unary(KernelContext& context, Op op) {
  std::vector<double> values = real_values(context, 0);
  for (double& value : values) value = op(value);
  set_quantized(context, context.input(0).shape(), values, 3, context.input(0).dtype());
}

void run_sigmoid(KernelContext& context) {
  run_unary(context, sigmoid<double>);
}

void run_leaky_relu(KernelContext& context) {
  const double alpha = context.node().float_attribute("alpha", 0.01F);
  run_unary(context, [alpha](double x) { return x < 0 ? alpha * x : x; });
}

// The attribute `opset` tells which Softmax of ai.onnx this was: before 13 it flattened to two dimensions.
void run_softmax(KernelContext& context) {
  const Node& node = context.node();
  const Tensor& x = context.input(0);
  if (x.rank() < 1) context.fail("the input is a scalar");
  std::vector<double> values = real_values(context, 0);
  AxisLayout layout =
      axis_layout(x.shape(), normalize_axis(context, node.int_attribute("axis", -1), x.rank()));
  if (node.int_attribute("opset", 13) < 13) layout = {layout.outer, layout.length * layout.inner, 1};
  for (int64_t row = 0; row < layout.rows(); ++row) {
    double most = -INFINITY, sum = 0;
    const auto at = [&](int64_t i) -> double& { return values[static_cast<size_t>(layout.at(row, i))]; };
    for (int64_t i = 0; i < layout.length; ++i) most = std::max(most, at(i));
    for (int64_t i = 0; i < layout.length; ++i) sum += at(i) = std::exp(at(i) - most);
    for (int64_t i = 0; i < layout.length; ++i) at(i) /= sum;
  }
  set_quantized(context, x.shape(), values, 3, x.dtype());
}

// By the kernel of ai.onnx on the real values.
void run_pool(KernelContext& context, std::string_view op) {
  if (context.node().int_attribute("channels_last", 0) != 0) context.unsupported("channels_last");
  const Tensor& x = context.input(0);
  const Tensor real = Tensor::from<double>(x.shape(), real_values(context, 0));
  KernelContext inner(context.node(), {real}, context.limits());
  const auto kernels = KernelTable::instance().find(kOnnxDomain, op, newest_opset(kOnnxDomain));
  select_kernel(kernels, kReferenceImplementation, inner).run(inner);
  const Tensor pooled = inner.take_outputs().front().dense();
  const Elements<double> values(pooled);
  set_quantized(context, pooled.shape(), std::vector<double>(values.begin(), values.end()), 3, x.dtype());
}

void run_average_pool(KernelContext& context) {
  run_pool(context, "AveragePool");
}
void run_global_average_pool(KernelContext& context) {
  run_pool(context, "GlobalAveragePool");
}

// (Y scale, zero, then X, scale, zero for each part)
void run_concat(KernelContext& context) {
  if (context.input_count() < 5 || context.input_count() % 3 != 2)
    context.fail(context.input_count(), " inputs");
  std::vector<Tensor> parts;
  for (size_t i = 2; i < context.input_count(); i += 3) {
    parts.push_back(Tensor::from<double>(context.input(i).shape(), real_values(context, i)));
  }
  const int64_t axis = normalize_axis(context, context.node().int_attribute("axis", 0), parts.front().rank());
  const Tensor joined = concat_tensors(context, parts, axis);
  const Elements<double> values(joined);
  set_quantized(context, joined.shape(), std::vector<double>(values.begin(), values.end()), 0,
                context.input(2).dtype());
}

// (A, scale, zero, B, scale, zero, C i32?, Y scale?, zero?): without a scale for Y the result is f32. The
// scale of B may be one per column.
void run_gemm(KernelContext& context) {
  const Node& node = context.node();
  Tensor a = minus_zero_point(context, context.input(0), context.optional_input(2), -1);
  Tensor b = context.input(3);
  const bool trans_b = node.int_attribute("transB", 0) != 0;
  if (a.rank() != 2 || b.rank() != 2) context.fail("the matrices must have rank 2");
  if (node.int_attribute("transA", 0) != 0) a = transposed_matrix(context, a);
  if (trans_b) b = transposed_matrix(context, b);
  b = minus_zero_point(context, b, context.optional_input(5), -1);
  const Tensor product = matmul(context, a, b, DType::I64);
  const int64_t columns = product.dim(1);
  const Tensor& b_scale = context.input(4);
  if (b_scale.size() != 1 && b_scale.size() != columns)
    context.fail("scales of shape ", to_string(b_scale.shape()));
  const double scale = static_cast<double>(scale_of(context, 1)) * node.float_attribute("alpha", 1.0F);
  std::vector<double> out;
  Shape strides(2, 0);
  if (context.has_input(6)) strides = broadcast_strides(context.input(6).shape(), product.shape());
  for (int64_t i = 0; i < product.size(); ++i) {
    int64_t sum = product.int_at(i);
    if (context.has_input(6))
      sum += context.input(6).int_at(i / columns * strides[0] + i % columns * strides[1]);
    out.push_back(static_cast<double>(sum) * scale * b_scale.at(b_scale.size() == 1 ? 0 : i % columns));
  }
  if (context.has_input(7)) {
    set_quantized(context, product.shape(), out, 7,
                  context.has_input(8) ? context.input(8).dtype() : DType::U8);
  } else {
    context.set_output(0, to_tensor(DType::F32, product.shape(), out));
  }
}

}  // namespace

void register_microsoft_qlinear(KernelTable& table) {
  add_microsoft_reference(table, {"QLinearAdd"}, run_binary<std::plus<>>);
  add_microsoft_reference(table, {"QLinearMul"}, run_binary<std::multiplies<>>);
  add_microsoft_reference(table, {"QLinearSigmoid"}, run_sigmoid);
  add_microsoft_reference(table, {"QLinearLeakyRelu"}, run_leaky_relu);
  add_microsoft_reference(table, {"QLinearSoftmax"}, run_softmax);
  add_microsoft_reference(table, {"QLinearAveragePool"}, run_average_pool);
  add_microsoft_reference(table, {"QLinearGlobalAveragePool"}, run_global_average_pool);
  add_microsoft_reference(table, {"QLinearConcat"}, run_concat);
  add_microsoft_reference(table, {"QGemm"}, run_gemm);
}

}  // namespace quern::runtime::reference
