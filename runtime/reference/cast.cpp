// Conversions between element types, and operators that choose between elements.
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "ir/float_types.h"
#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

// As Python prints them: the shortest digits that read back to the same value, "1.0", "inf", "nan".
std::string float_text(double value, bool single) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[64];
  const auto end = single ? std::to_chars(digits, digits + sizeof digits, static_cast<float>(value)).ptr
                          : std::to_chars(digits, digits + sizeof digits, value).ptr;
  std::string text(digits, end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

Tensor to_strings(const Tensor& x) {
  std::vector<std::string> strings;
  for (int64_t i = 0; i < x.size(); ++i) {
    if (is_floating(x.dtype())) {
      strings.push_back(float_text(x.at(i), x.dtype() != DType::F64));
    } else if (x.dtype() == DType::U64) {
      strings.push_back(std::to_string(static_cast<uint64_t>(x.int_at(i))));
    } else {
      strings.push_back(std::to_string(x.int_at(i)));
    }
  }
  return Tensor::from_strings(x.shape(), std::move(strings));
}

Tensor from_strings(KernelContext& context, const Tensor& x, DType dtype) {
  std::vector<double> numbers;
  for (const std::string& text : x.strings()) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0') context.fail("'", text, "' is not a number");
    numbers.push_back(value);
  }
  return Tensor::from<double>(x.shape(), numbers).cast(dtype);
}

bool is_narrow_float(DType dtype) {
  return (is_floating(dtype) && bit_width(dtype) == 8) || dtype == DType::F8E8M0;
}

// Scales that are powers of two: the exponent rounded up, down, or to the nearest, by the node's round_mode.
uint8_t to_e8m0(float value, const std::string& mode, bool saturate) {
  const uint32_t bits = std::bit_cast<uint32_t>(std::fabs(value));
  if (std::isnan(value)) return 0xFF;
  if (std::isinf(value)) return saturate ? 0xFE : 0xFF;
  uint32_t exponent = bits >> 23;
  const uint32_t fraction = bits & 0x7FFFFF;
  if (exponent == 0) {  // zero and subnormals: 2^-127 is 0.5 * 2^-126
    if (fraction == 0) return 0;
    const bool up = mode == "up" ? fraction > 0x400000 : mode == "nearest" ? fraction > 0x600000 : false;
    return up ? 1 : 0;
  }
  const bool up = mode == "up" ? fraction != 0 : mode == "nearest" ? fraction >= 0x400000 : false;
  exponent += up ? 1 : 0;
  if (exponent >= 0xFF) return saturate ? 0xFE : 0xFF;
  return static_cast<uint8_t>(exponent);
}

Tensor cast_narrow(KernelContext& context, const Tensor& x, DType dtype) {
  const bool saturate = context.node().int_attribute("saturate", 1) != 0;
  const std::string mode = context.node().string_attribute("round_mode", "up");
  Tensor out = context.make(dtype, x.shape());
  const std::span<uint8_t> bytes = out.mutable_data<uint8_t>();
  const Elements<float> in(x);
  for (int64_t i = 0; i < x.size(); ++i) {
    bytes[static_cast<size_t>(i)] =
        dtype == DType::F8E8M0 ? to_e8m0(in[i], mode, saturate) : f32_to_narrow(in[i], dtype, saturate);
  }
  return out;
}

Tensor cast_to(KernelContext& context, const Tensor& x, DType dtype) {
  if (dtype == DType::Undefined) context.unsupported("the target type is complex or unknown");
  if (x.dtype() == dtype) return x;
  context.checked_count(dtype, x.shape());
  if (x.dtype() == DType::String) return from_strings(context, x, dtype);
  if (dtype == DType::String) return to_strings(x);
  if (is_narrow_float(dtype)) return cast_narrow(context, x, dtype);
  return x.cast(dtype);
}

void run_cast(KernelContext& context) {
  const DType to = dtype_from_onnx_number(context.node().int_attribute("to", 0));
  context.set_output(0, cast_to(context, context.input(0), to));
}

void run_cast_like(KernelContext& context) {
  context.set_output(0, cast_to(context, context.input(0), context.input(1).dtype()));
}

void run_bit_cast(KernelContext& context) {
  const Tensor& x = context.input(0);
  const DType to = dtype_from_onnx_number(context.node().int_attribute("to", 0));
  if (x.dtype() == DType::String || to == DType::String || bit_width(to) != bit_width(x.dtype())) {
    context.fail("the bits of ", to_string(x.dtype()), " do not fit ", to_string(to));
  }
  Tensor out = context.make(to, x.shape());
  if (x.byte_size() != 0) std::memcpy(out.mutable_bytes(), x.bytes(), static_cast<size_t>(x.byte_size()));
  context.set_output(0, std::move(out));
}

void run_where(KernelContext& context) {
  const Tensor& condition = context.input(0);
  const Tensor& a = context.input(1);
  const Tensor& b = context.input(2);
  const Shape shape = broadcast_shapes(broadcast_shapes(condition.shape(), a.shape()), b.shape());
  std::vector<int64_t> sources;
  sources.reserve(static_cast<size_t>(context.checked_count(a.dtype(), shape)));
  const std::span<const uint8_t> flags = condition.data<uint8_t>();
  for_each_offset<3>(shape,
                     {broadcast_strides(condition.shape(), shape), broadcast_strides(a.shape(), shape),
                      broadcast_strides(b.shape(), shape)},
                     [&](int64_t c, int64_t oa, int64_t ob) {
                       sources.push_back(flags[static_cast<size_t>(c)] != 0 ? oa : a.size() + ob);
                     });
  context.set_output(0, gather_elements(context, {a, b}, shape, sources));
}

// Bounds are attributes up to version 10 and inputs from 11 on; min above max gives max everywhere.
void run_clip(KernelContext& context) {
  const Tensor& x = context.input(0);
  const Node& node = context.node();
  const Tensor* low = context.optional_input(1);
  const Tensor* high = context.optional_input(2);
  for (const Tensor* bound : {low, high}) {
    if (bound != nullptr && bound->size() != 1) context.fail("a bound is not a scalar");
  }
  with_computing_type(x.dtype(), [&]<class C>() {
    const Elements<C> in(x);
    std::vector<C> out(in.begin(), in.end());
    const auto bound = [&](const Tensor* input, const char* name) -> std::optional<C> {
      if (input != nullptr) return Elements<C>(*input)[0];
      if (node.has_attribute(name)) return static_cast<C>(node.float_attribute(name, 0));
      return std::nullopt;
    };
    const std::optional<C> least = bound(low, "min");
    const std::optional<C> greatest = bound(high, "max");
    for (C& value : out) {
      if (least && value < *least) value = *least;
      if (greatest && value > *greatest) value = *greatest;
    }
    context.set_output(0, to_tensor(x.dtype(), x.shape(), out));
  });
}

// Inference: the input itself, and a mask of ones. Training needs the drawing of a specific generator, which
// ONNX leaves open.
void run_dropout(KernelContext& context) {
  const Tensor& x = context.input(0);
  const bool training = context.has_input(2) && context.input(2).at(0) != 0;
  const double ratio = context.has_input(1) ? context.input(1).at(0) : 0.5;
  if (training && ratio != 0) context.unsupported("training mode");
  context.set_output(0, x);
  if (!context.wants_output(1)) return;
  Tensor mask = context.make(context.opset() >= 10 ? DType::Bool : x.dtype(), x.shape());
  for (int64_t i = 0; i < mask.size(); ++i) mask.set(i, 1);
  context.set_output(1, std::move(mask));
}

}  // namespace

void register_cast(KernelTable& table) {
  add_reference(table, {"Cast"}, run_cast);
  add_reference(table, {"CastLike"}, run_cast_like);
  add_reference(table, {"BitCast"}, run_bit_cast);
  add_reference(table, {"Where"}, run_where);
  add_reference(table, {"Clip"}, run_clip);
  add_reference(table, {"Dropout"}, run_dropout);
}

}  // namespace quern::runtime::reference
