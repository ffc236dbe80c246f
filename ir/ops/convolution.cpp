// Convolutions and pooling.
#include <algorithm>

#include "ir/ops/infer_common.h"
#include "ir/ops/register.h"

namespace quern {
namespace {

// Strides, pads and the rest are small numbers in any real model; larger ones would overflow what follows.
constexpr int64_t kMaxAttribute = int64_t{1} << 30;

std::vector<int64_t> spatial_attribute(const InferContext& context, const std::string& name, size_t count,
                                       int64_t fallback, int64_t least) {
  std::vector<int64_t> values = context.node().ints_attribute(name, std::vector<int64_t>(count, fallback));
  if (values.empty()) values.assign(count, fallback);
  if (values.size() != count)
    context.fail(concat(name, " has ", values.size(), " entries, expected ", count));
  for (const int64_t value : values) {
    if (value < least || value > kMaxAttribute) context.fail(concat(name, " holds ", value));
  }
  return values;
}

Dim ceil_div(const Dim& length, int64_t stride) {
  if (stride == 1) return length;
  const std::optional<int64_t> known = length.as_constant();
  return known ? Dim((*known + stride - 1) / stride) : Dim::fresh();
}

// Spatial output dimensions of a window that slides over `spatial`.
SymShape slide(const InferContext& context, const SymShape& spatial, const std::vector<int64_t>& kernel,
               bool ceil) {
  const size_t n = spatial.size();
  const std::vector<int64_t> strides = spatial_attribute(context, "strides", n, 1, 1);
  const std::vector<int64_t> dilations = spatial_attribute(context, "dilations", n, 1, 1);
  const std::vector<int64_t> pads = spatial_attribute(context, "pads", 2 * n, 0, -kMaxAttribute);
  const std::string auto_pad = context.node().string_attribute("auto_pad", "NOTSET");
  SymShape out;
  for (size_t i = 0; i < n; ++i) {
    if (kernel[i] < 1 || kernel[i] > kMaxAttribute) context.fail("the kernel has no extent");
    const int64_t reach = dilations[i] * (kernel[i] - 1) + 1;
    if (auto_pad.starts_with("SAME")) {
      out.push_back(ceil_div(spatial[i], strides[i]));
      continue;
    }
    const int64_t padding = auto_pad == "VALID" ? 0 : pads[i] + pads[i + n];
    Dim count = window_count(spatial[i], reach, padding, strides[i], ceil);
    const std::optional<int64_t> known = count.as_constant();
    const std::optional<int64_t> length = spatial[i].as_constant();
    // A window that would start in the padding at the end does not count.
    if (ceil && known && length && *known > 1 &&
        (*known - 1) * strides[i] >= *length + (auto_pad == "VALID" ? 0 : pads[i])) {
      count = Dim(*known - 1);
    }
    out.push_back(count);
  }
  return out;
}

std::optional<std::vector<int64_t>> kernel_of(const InferContext& context, size_t weight) {
  if (context.node().has_attribute("kernel_shape")) return context.node().ints_attribute("kernel_shape", {});
  if (!context.shape(weight) || context.shape(weight)->size() < 2) return std::nullopt;
  const SymShape& shape = *context.shape(weight);
  return as_constant(SymShape(shape.begin() + 2, shape.end()));
}

void infer_conv_as(InferContext& context, size_t weight, DType dtype) {
  const std::optional<SymShape>& x = context.shape(0);
  const auto unknown = [&] {
    context.set_output(0, dtype, x ? std::optional(unknown_dims(x->size())) : std::nullopt);
  };
  const std::optional<std::vector<int64_t>> kernel = kernel_of(context, weight);
  if (!x || !kernel) return unknown();
  if (x->size() < 2 || kernel->size() != x->size() - 2) {
    context.fail(concat("a kernel of ", kernel->size(), " dimensions for an input of shape ", to_string(*x)));
  }
  if (context.shape(weight) && context.shape(weight)->size() != x->size()) {
    context.fail(concat("a weight of shape ", to_string(*context.shape(weight)), " for an input of shape ",
                        to_string(*x)));
  }
  const Dim channels = context.shape(weight) ? context.shape(weight)->front() : Dim::fresh();
  SymShape out{x->front(), channels};
  const SymShape spatial = slide(context, SymShape(x->begin() + 2, x->end()), *kernel, false);
  out.insert(out.end(), spatial.begin(), spatial.end());
  context.set_output(0, dtype, std::move(out));
}

void infer_conv(InferContext& context) {
  infer_conv_as(context, 1, context.dtype(0));
}
void infer_conv_integer(InferContext& context) {
  infer_conv_as(context, 1, DType::I32);
}
// (x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias?)
void infer_qlinear_conv(InferContext& context) {
  infer_conv_as(context, 3, context.dtype(7));
}

// Of what `x` is spread out to in `channels` channels.
void infer_spread(InferContext& context, const SymShape& x, const std::vector<int64_t>& kernel,
                  Dim channels) {
  const size_t n = kernel.size();
  const Node& node = context.node();
  const std::vector<int64_t> strides = spatial_attribute(context, "strides", n, 1, 1);
  const std::vector<int64_t> dilations = spatial_attribute(context, "dilations", n, 1, 1);
  const std::vector<int64_t> pads = spatial_attribute(context, "pads", 2 * n, 0, -kMaxAttribute);
  const std::vector<int64_t> extra = spatial_attribute(context, "output_padding", n, 0, 0);
  const std::string auto_pad = node.string_attribute("auto_pad", "NOTSET");
  const std::vector<int64_t> given = node.ints_attribute("output_shape", {});
  SymShape out{x.front(), std::move(channels)};
  for (size_t i = 0; i < n; ++i) {
    const Dim& length = x[i + 2];
    if (!given.empty()) {
      if (given.size() < n) context.fail("output_shape is too short");
      out.emplace_back(given[given.size() - n + i]);
    } else if (auto_pad.starts_with("SAME")) {
      out.push_back(length * Dim(strides[i]));
    } else {
      const int64_t padding = auto_pad == "VALID" ? 0 : pads[i] + pads[i + n];
      const int64_t reach = (kernel[i] - 1) * dilations[i] + 1;
      out.push_back((length - Dim(1)) * Dim(strides[i]) + Dim(extra[i] + reach - padding));
    }
  }
  context.set_output(0, context.dtype(0), std::move(out));
}

void infer_conv_transpose(InferContext& context) {
  const std::optional<SymShape>& x = context.shape(0);
  const std::optional<std::vector<int64_t>> kernel = kernel_of(context, 1);
  if (!x || !kernel || !context.shape(1))
    return infer_rank(context, x ? std::optional(x->size()) : std::nullopt);
  if (x->size() < 2 || kernel->size() != x->size() - 2 || context.shape(1)->size() != x->size()) {
    context.fail("the kernel does not fit the input");
  }
  infer_spread(context, *x, *kernel, (*context.shape(1))[1] * Dim(context.node().int_attribute("group", 1)));
}

// ai.quern: x [N, C, ...], weight [outputs, taps * C / group]
template <bool kTransposed>
void infer_convolution(InferContext& context) {
  const std::optional<SymShape>& x = context.shape(0);
  const std::vector<int64_t> kernel = context.node().ints_attribute("kernel_shape", {});
  const int64_t groups = context.node().int_attribute("group", 1);
  if (!x || !context.shape(1)) return infer_rank(context, x ? std::optional(x->size()) : std::nullopt);
  const SymShape& weight = *context.shape(1);
  if (x->size() < 3 || kernel.size() != x->size() - 2 || weight.size() != 2 || groups < 1) {
    context.fail(concat("a weight of shape ", to_string(weight), " and a kernel of ", kernel.size(),
                        " dimensions in ", groups, " groups for an input of shape ", to_string(*x)));
  }
  int64_t taps = 1;
  for (const int64_t length : kernel) {
    if (length < 1 || length > kMaxAttribute || taps > kMaxAttribute / length)
      context.fail(concat("kernel_shape holds ", length));
    taps *= length;
  }
  const std::optional<int64_t> channels = (*x)[1].as_constant();
  const std::optional<int64_t> columns = weight[1].as_constant();
  if (channels && columns && (*channels % groups != 0 || *columns != taps * (*channels / groups))) {
    context.fail(concat("a weight of shape ", to_string(weight), " in ", groups,
                        " groups for an input of shape ", to_string(*x)));
  }
  if (kTransposed) return infer_spread(context, *x, kernel, weight[0]);
  SymShape out{x->front(), weight[0]};
  const SymShape spatial = slide(context, SymShape(x->begin() + 2, x->end()), kernel, false);
  out.insert(out.end(), spatial.begin(), spatial.end());
  context.set_output(0, context.dtype(0), std::move(out));
}

void infer_pool(InferContext& context) {
  const Node& node = context.node();
  const std::optional<SymShape>& x = context.shape(0);
  if (!x) return infer_rank(context, std::nullopt);
  const std::vector<int64_t> kernel = node.ints_attribute("kernel_shape", {});
  if (x->size() < 2 || kernel.size() != x->size() - 2) {
    context.fail(concat("a kernel of ", kernel.size(), " dimensions for an input of shape ", to_string(*x)));
  }
  SymShape out{(*x)[0], (*x)[1]};
  const SymShape spatial =
      slide(context, SymShape(x->begin() + 2, x->end()), kernel, node.int_attribute("ceil_mode", 0) != 0);
  out.insert(out.end(), spatial.begin(), spatial.end());
  context.set_output(0, context.dtype(0), out);
  context.set_output(1, DType::I64, out);
}

void infer_global_pool(InferContext& context) {
  std::optional<SymShape> shape = context.shape(0);
  if (shape) {
    if (shape->size() < 2) context.fail("the input has a rank below 2");
    std::fill(shape->begin() + 2, shape->end(), Dim(1));
  }
  context.set_output(0, context.dtype(0), shape);
}

void infer_max_unpool(InferContext& context) {
  if (context.has_input(2)) {
    const auto elements = context.elements(2);
    context.set_output(0, context.dtype(0), elements ? std::optional<SymShape>(*elements) : std::nullopt);
    return;
  }
  const std::optional<SymShape>& x = context.shape(0);
  if (!x) return infer_rank(context, std::nullopt);
  const std::vector<int64_t> kernel = context.node().ints_attribute("kernel_shape", {});
  if (x->size() < 2 || kernel.size() != x->size() - 2) context.fail("the kernel does not fit the input");
  const size_t n = kernel.size();
  const std::vector<int64_t> strides = spatial_attribute(context, "strides", n, 1, 1);
  const std::vector<int64_t> pads = spatial_attribute(context, "pads", 2 * n, 0, 0);
  SymShape out{(*x)[0], (*x)[1]};
  for (size_t i = 0; i < n; ++i) {
    out.push_back(((*x)[i + 2] - Dim(1)) * Dim(strides[i]) + Dim(kernel[i] - pads[i] - pads[i + n]));
  }
  context.set_output(0, context.dtype(0), std::move(out));
}

// (x, rois [n, 4 or 5], batch_indices?) -> [n, C, height, width]
void infer_roi(InferContext& context) {
  const Node& node = context.node();
  if (!context.shape(0) || !context.shape(1) || context.shape(0)->size() != 4 || context.shape(1)->empty()) {
    return infer_rank(context, 4);
  }
  int64_t height = node.int_attribute("output_height", 1);
  int64_t width = node.int_attribute("output_width", 1);
  if (node.op() == "MaxRoiPool") {
    const std::vector<int64_t> pooled = node.ints_attribute("pooled_shape", {});
    if (pooled.size() != 2) context.fail("pooled_shape needs two numbers");
    height = pooled[0];
    width = pooled[1];
  }
  context.set_output(0, context.dtype(0),
                     SymShape{context.shape(1)->front(), (*context.shape(0))[1], Dim(height), Dim(width)});
}

// (x [N, C*block, L], image_shape, block_shape) -> [N, C, image...]
void infer_col2im(InferContext& context) {
  const auto image = context.elements(1);
  const auto block = context.elements(2);
  if (!context.shape(0) || context.shape(0)->size() != 3 || !image) return infer_rank(context, std::nullopt);
  SymShape out{(*context.shape(0))[0], Dim::fresh()};
  if (block) {
    if (const auto channels = (*context.shape(0))[1].divided_by(product(*block))) out[1] = *channels;
  }
  out.insert(out.end(), image->begin(), image->end());
  context.set_output(0, context.dtype(0), std::move(out));
}

}  // namespace

void register_convolution_schemas(SchemaTable& table) {
  table.add({.op = "Conv",
             .min_inputs = 2,
             .max_inputs = 3,
             .infer = infer_conv,
             .quantizable = {{.input = 1, .channel_axis = 0, .reduction_axis = 1}}});
  table.add({.op = "ConvInteger", .min_inputs = 2, .max_inputs = 4, .infer = infer_conv_integer});
  table.add({.op = "QLinearConv", .min_inputs = 8, .max_inputs = 9, .infer = infer_qlinear_conv});
  table.add({.op = "ConvTranspose", .min_inputs = 2, .max_inputs = 3, .infer = infer_conv_transpose});
  const auto add_own = [&](const char* op, InferFunction infer) {
    table.add({.domain = std::string(kQuernDomain),
               .op = op,
               .min_inputs = 2,
               .max_inputs = 3,
               .required_attributes = {"kernel_shape"},
               .infer = infer,
               .quantizable = {{.input = 1, .channel_axis = 0, .reduction_axis = 1}}});
  };
  add_own("Convolution", infer_convolution<false>);
  add_own("ConvolutionTranspose", infer_convolution<true>);
  table.add({.op = "DeformConv", .min_inputs = 3, .max_inputs = 5, .infer = infer_conv});
  for (const char* op : {"AveragePool", "LpPool"}) {
    table.add({.op = op,
               .min_inputs = 1,
               .max_inputs = 1,
               .required_attributes = {"kernel_shape"},
               .infer = infer_pool});
  }
  table.add({.op = "MaxPool",
             .min_inputs = 1,
             .max_inputs = 1,
             .max_outputs = 2,
             .required_attributes = {"kernel_shape"},
             .infer = infer_pool});
  for (const char* op : {"GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"}) {
    table.add({.op = op, .min_inputs = 1, .max_inputs = 1, .infer = infer_global_pool});
  }
  // The quantized ones of ONNX Runtime: codes, scale, zero point, then scale and zero point of the result.
  table.add({.domain = std::string(kMicrosoftDomain),
             .op = "QLinearAveragePool",
             .min_inputs = 4,
             .max_inputs = 5,
             .required_attributes = {"kernel_shape"},
             .infer = infer_pool});
  table.add({.domain = std::string(kMicrosoftDomain),
             .op = "QLinearGlobalAveragePool",
             .min_inputs = 4,
             .max_inputs = 5,
             .infer = infer_global_pool});
  table.add({.op = "MaxUnpool",
             .min_inputs = 2,
             .max_inputs = 3,
             .required_attributes = {"kernel_shape"},
             .infer = infer_max_unpool});
  table.add({.op = "RoiAlign", .min_inputs = 3, .max_inputs = 3, .infer = infer_roi});
  table.add({.op = "MaxRoiPool", .min_inputs = 2, .max_inputs = 2, .infer = infer_roi});
  table.add({.op = "Col2Im", .min_inputs = 3, .max_inputs = 3, .infer = infer_col2im});
}

}  // namespace quern
