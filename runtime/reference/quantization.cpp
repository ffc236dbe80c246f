// QuantizeLinear, DequantizeLinear and the integer products made with them.
#include "runtime/reference/quantization.h"

#include <algorithm>
#include <cmath>

#include "ir/float_types.h"
#include "runtime/reference/matmul.h"
#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

// Parts of `size` that `length` is cut into, the last perhaps shorter.
int64_t parts_of(int64_t length, int64_t size) {
  return length / size + (length % size != 0 ? 1 : 0);
}

}  // namespace

ScaleLayout::ScaleLayout(const KernelContext& context, const Shape& shape, const Shape& scale, int64_t axis,
                         int64_t block_size) {
  if (element_count(scale) == 1 && block_size == 0) {
    single_ = true;
    return;
  }
  const auto refuse = [&] {
    context.fail("scales of shape ", to_string(scale), " do not fit ", to_string(shape), " along axis ",
                 axis);
  };
  const auto rank = static_cast<int64_t>(shape.size());
  if (axis < -rank || axis >= rank) refuse();
  const auto at = static_cast<size_t>(axis < 0 ? axis + rank : axis);
  inner_ = strides_of(shape)[at];
  length_ = shape[at];
  if (scale.size() == 1 && scale[0] == length_) return;
  if (scale.size() != shape.size() || scale[at] < 1) refuse();
  blocked_ = true;
  blocks_ = scale[at];
  block_ = block_size != 0 ? block_size : parts_of(length_, blocks_);
  Shape expected = shape;
  expected[at] = block_ < 1 ? -1 : parts_of(length_, block_);
  if (expected != scale) refuse();
}

void Quantizer::store(Tensor& out, int64_t i, float value, float scale, int64_t zero) const {
  const float quotient = value / scale;
  if (is_floating(dtype)) {
    if (bit_width(dtype) == 8) {
      out.mutable_data<uint8_t>()[static_cast<size_t>(i)] = f32_to_narrow(quotient, dtype, saturate);
    } else {
      out.set(i, quotient);
    }
    return;
  }
  out.set(i, std::nearbyint(static_cast<double>(quotient)) + static_cast<double>(zero));
}

Tensor minus_zero_point(const KernelContext& context, const Tensor& codes, const Tensor* zero, int64_t axis) {
  if (zero == nullptr) return codes.cast(DType::I64);
  Tensor wide = codes.cast(DType::I64);
  const Tensor zeros = zero->cast(DType::I64);
  Shape shape = zeros.shape();
  // One per row or column: a vector stands along its axis.
  if (shape.size() == 1 && shape[0] != 1 && axis == -2) shape.push_back(1);
  if (broadcast_shapes(shape, codes.shape()) != codes.shape()) {
    context.fail("zero points of shape ", to_string(zero->shape()), " do not fit ", to_string(codes.shape()));
  }
  const std::span<const int64_t> offsets = zeros.data<int64_t>();
  const std::span<int64_t> data = wide.mutable_data<int64_t>();
  size_t i = 0;
  for_each_offset<1>(codes.shape(), {broadcast_strides(shape, codes.shape())},
                     [&](int64_t offset) { data[i++] -= offsets[static_cast<size_t>(offset)]; });
  return wide;
}

namespace {

void run_quantize(KernelContext& context) {
  const Node& node = context.node();
  const Tensor& x = context.input(0);
  const Tensor& scale = context.input(1);
  const Tensor* zero = context.optional_input(2);
  const int64_t number = node.int_attribute("output_dtype", 0);
  Quantizer quantizer;
  quantizer.dtype = number != 0       ? dtype_from_onnx_number(number)
                    : zero != nullptr ? zero->dtype()
                                      : DType::U8;
  quantizer.saturate = node.int_attribute("saturate", 1) != 0;
  if (zero != nullptr && zero->shape() != scale.shape() && zero->size() != scale.size()) {
    context.fail("scales and zero points differ in shape");
  }
  const ScaleLayout layout(context, x.shape(), scale.shape(), node.int_attribute("axis", 1),
                           node.int_attribute("block_size", 0));
  Tensor out = context.make(quantizer.dtype, x.shape());
  const Elements<float> values(x), scales(scale);
  const bool has_zero = zero != nullptr && is_integer(zero->dtype());
  for (int64_t i = 0; i < x.size(); ++i) {
    const int64_t s = layout(i);
    quantizer.store(out, i, values[i], scales[s], has_zero ? zero->int_at(s) : 0);
  }
  context.set_output(0, std::move(out));
}

void run_dequantize(KernelContext& context) {
  const Node& node = context.node();
  const Tensor& x = context.input(0);
  const Tensor& scale = context.input(1);
  const Tensor* zero = context.optional_input(2);
  const int64_t number = node.int_attribute("output_dtype", 0);
  const ScaleLayout layout(context, x.shape(), scale.shape(), node.int_attribute("axis", 1),
                           node.int_attribute("block_size", 0));
  if (zero != nullptr && zero->size() != scale.size()) context.fail("scales and zero points differ in shape");
  std::vector<float> out = make_buffer<float>(context, x.shape());
  const Elements<float> scales(scale);
  const bool floating = is_floating(x.dtype());
  for (int64_t i = 0; i < x.size(); ++i) {
    const int64_t s = layout(i);
    const double code = floating ? x.at(i) : static_cast<double>(x.int_at(i));
    const double offset = zero == nullptr ? 0.0 : zero->at(s);
    out[static_cast<size_t>(i)] = static_cast<float>(code - offset) * scales[s];
  }
  context.set_output(0,
                     to_tensor(number != 0 ? dtype_from_onnx_number(number) : scale.dtype(), x.shape(), out));
}

// To u8 over the range of the data with 0 in it.
void run_dynamic_quantize(KernelContext& context) {
  const Tensor& x = context.input(0);
  const Elements<float> values(x);
  float low = 0;
  float high = 0;
  for (const float value : values) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  const float scale = (high - low) / 255.0F;
  const float zero = scale == 0 ? 0 : std::clamp(std::nearbyint(-low / scale), 0.0F, 255.0F);
  Tensor out = context.make(DType::U8, x.shape());
  const std::span<uint8_t> codes = out.mutable_data<uint8_t>();
  for (size_t i = 0; i < codes.size(); ++i) {
    const float code = scale == 0 ? 0 : std::nearbyint(values[static_cast<int64_t>(i)] / scale) + zero;
    codes[i] = static_cast<uint8_t>(std::clamp(code, 0.0F, 255.0F));
  }
  context.set_output(0, std::move(out));
  context.set_output(1, Tensor::scalar(scale));
  context.set_output(2, Tensor::scalar(static_cast<uint8_t>(zero)));
}

void run_matmul_integer(KernelContext& context) {
  const Tensor a = minus_zero_point(context, context.input(0), context.optional_input(2), -2);
  const Tensor b = minus_zero_point(context, context.input(1), context.optional_input(3), -1);
  context.set_output(0, matmul(context, a, b, DType::I32));
}

// (a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero); scales per tensor, or per row of a and column of
// b.
void run_qlinear_matmul(KernelContext& context) {
  const Tensor a = minus_zero_point(context, context.input(0), &context.input(2), -2);
  const Tensor b = minus_zero_point(context, context.input(3), &context.input(5), -1);
  const Tensor product = matmul(context, a, b, DType::I64);
  const Shape& shape = product.shape();
  const auto along = [&](const Tensor& scale, bool is_row) {
    Shape stretched = scale.shape();
    if (is_row && stretched.size() == 1 && stretched[0] != 1) stretched.push_back(1);
    if (broadcast_shapes(stretched, shape) != shape) {
      context.fail("scales of shape ", to_string(scale.shape()), " do not fit ", to_string(shape));
    }
    return broadcast_strides(stretched, shape);
  };
  const Elements<float> scale_a(context.input(1)), scale_b(context.input(4)), scale_y(context.input(6));
  const Tensor& zero_y = context.input(7);
  Quantizer quantizer;
  quantizer.dtype = zero_y.dtype();
  Tensor out = context.make(zero_y.dtype(), shape);
  int64_t i = 0;
  for_each_offset<3>(
      shape, {along(context.input(1), true), along(context.input(4), false), along(context.input(6), true)},
      [&](int64_t at_a, int64_t at_b, int64_t at_y) {
        const double real = static_cast<double>(product.int_at(i)) * scale_a[at_a] * scale_b[at_b];
        const int64_t zero = zero_y.int_at(zero_y.size() == 1 ? 0 : at_y);
        quantizer.store(out, i++, static_cast<float>(real), scale_y[at_y], zero);
      });
  context.set_output(0, std::move(out));
}

}  // namespace

void register_quantization(KernelTable& table) {
  add_reference(table, {"QuantizeLinear"}, run_quantize);
  add_reference(table, {"DequantizeLinear"}, run_dequantize);
  add_reference(table, {"DynamicQuantizeLinear"}, run_dynamic_quantize);
  add_reference(table, {"MatMulInteger"}, run_matmul_integer);
  add_reference(table, {"QLinearMatMul"}, run_qlinear_matmul);
  add_microsoft_reference(table, {"QuantizeLinear"}, run_quantize);
  add_microsoft_reference(table, {"DequantizeLinear"}, run_dequantize);
}

}  // namespace quern::runtime::reference
