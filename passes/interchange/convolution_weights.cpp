// Convolutions of quantized and float weights, in the operators of other runtimes.
#include <cmath>

#include "ir/products.h"
#include "passes/canonicalize/quantized_layout.h"
#include "passes/interchange/weights.h"

namespace quern::passes {
namespace {

using Granularity = QuantScheme::Granularity;

// The first spatial axis.
constexpr int64_t kSpatial = 2;

}  // namespace

// How ai.onnx has the kernel: Conv [M, C / G, kernel...], ConvTranspose [C, M / G, kernel...].
struct WeightLowering::KernelForm {
  explicit KernelForm(const Node& node, const Shape& matrix)
      : transposed(node.op() == "ConvolutionTranspose"),
        groups(node.int_attribute("group", 1)),
        kernel(node.ints_attribute("kernel_shape", {})),
        outputs(matrix.at(0)),
        inputs(matrix.at(1) / element_count(kernel)) {}

  Shape shape() const {
    Shape shape = transposed ? Shape{groups * inputs, outputs / groups} : Shape{outputs, inputs};
    shape.insert(shape.end(), kernel.begin(), kernel.end());
    return shape;
  }
  std::string key() const { return concat(transposed, " ", groups, " ", to_string(kernel)); }

  // The elements of a matrix in that order.
  Tensor relaid(const Tensor& matrix) const {
    Tensor out = Tensor::zeros(matrix.dtype(), shape());
    const int64_t taps = element_count(kernel), of_group = outputs / groups;
    const bool integers = is_integer(matrix.dtype());
    int64_t from = 0;
    for (int64_t m = 0; m < outputs; ++m) {
      for (int64_t t = 0; t < taps; ++t) {
        for (int64_t c = 0; c < inputs; ++c, ++from) {
          const int64_t row =
              transposed ? (m / of_group * inputs + c) * of_group + m % of_group : m * inputs + c;
          if (integers) {
            out.set_int(row * taps + t, matrix.int_at(from));
          } else {
            out.set(row * taps + t, matrix.at(from));
          }
        }
      }
    }
    return out;
  }

  bool transposed;
  int64_t groups;
  Shape kernel;
  int64_t outputs;
  int64_t inputs;  // of a group
};

Value* WeightLowering::dense_kernel(const Node& node, const Weight& weight, const KernelForm& form) {
  Value*& made = kernels_[{&weight, form.key()}];
  if (made) return made;
  made = emit_.constant(form.relaid(weight.dense), weight.name);
  const DType wanted = node.input(0)->dtype();
  if (weight.dense.dtype() != wanted) made = emit_.cast(made, wanted);
  return made;
}

Value* WeightLowering::dequantized_kernel(const Node& node, const Weight& weight, const KernelForm& form) {
  Value*& made = kernels_[{&weight, form.key()}];
  if (made) return made;
  const QuantScheme& scheme = weight.codes.scheme;
  const bool by_channel = scheme.granularity == Granularity::Channel;
  if (scheme.granularity == Granularity::Group || (by_channel && form.transposed && form.groups > 1)) {
    // No axis of the kernel has these scales: it is made of the matrix.
    Value* matrix = dequantized_table(weight);
    const auto spatial = static_cast<int64_t>(form.kernel.size());
    Shape split = {form.groups, form.outputs / form.groups};
    split.insert(split.end(), form.kernel.begin(), form.kernel.end());
    split.push_back(form.inputs);
    std::vector<int64_t> order = {0, 1, spatial + kSpatial};
    if (form.transposed) order = {0, spatial + kSpatial, 1};
    for (int64_t i = 0; i < spatial; ++i) order.push_back(kSpatial + i);
    made = emit_.reshape(emit_.transpose(emit_.reshape(matrix, split), order), form.shape());
  } else {
    Value* codes = emit_.constant(form.relaid(weight.codes.codes), weight.name + "_quantized");
    Value* scales = emit_.constant(weight.codes.scales.cast(DType::F32), weight.name + "_scale");
    const Tensor points = explicit_points(weight.codes);
    Value* point = points.defined() ? emit_.constant(points, weight.name + "_zero_point") : nullptr;
    Attributes attributes;
    if (by_channel) attributes["axis"] = int64_t{form.transposed ? 1 : 0};
    made = emit_.add("DequantizeLinear", {codes, scales, point}, attributes);
  }
  const DType wanted = node.input(0)->dtype();
  if (wanted != DType::F32) made = emit_.cast(made, wanted);
  return made;
}

// What is a token to a Linear is a sample here.
WeightLowering::Dynamic WeightLowering::coded_image(const Node& node) {
  const std::string kind = node.string_attribute("activations", "");
  if (kind == "static") return coded_input(node);
  const bool by_sample = kind == "int8" || kind == "int8-token";
  Dynamic& made = dynamics_[{emit_.batch().resolve(node.input(0)), by_sample ? "int8-sample" : ""}];
  if (made.codes != nullptr) return made;
  Value* x = node.input(0);
  if (!by_sample) {
    const Node* rounded = emit_.node("DynamicQuantizeLinear", {x}, {}, 3);
    return made = {rounded->output(0), rounded->output(1), rounded->output(2)};
  }
  constexpr int kAxesAreInput = 18;
  Value* magnitudes = emit_.add("Abs", {x});
  std::vector<int64_t> axes;
  for (size_t axis = 1; axis < node.ints_attribute("kernel_shape", {}).size() + kSpatial; ++axis)
    axes.push_back(static_cast<int64_t>(axis));
  Value* largest = emit_.opset() < kAxesAreInput ? emit_.add("ReduceMax", {magnitudes}, {{"axes", axes}})
                                                 : emit_.add("ReduceMax", {magnitudes, emit_.ints(axes)});
  return made = by_magnitude(x, largest);
}

// Both operands are u8, as in MatMulInteger.
Value* WeightLowering::integer_convolution(const Node& node, const Weight& weight, const KernelForm& form) {
  const std::optional<ColumnCodes> columns = to_columns(weight.codes);
  if (!columns || columns->points.size() != 1) {
    refuse(weight,
           "ConvInteger takes integers with one scale, or one per output, and one zero point; convert with "
           "--granularity channel --symmetric, or export it with --style qdq");
  }
  Value*& kernel = kernels_[{&weight, form.key()}];
  if (!kernel) kernel = emit_.constant(form.relaid(transposed(columns->codes)), weight.name + "_quantized");
  const uint8_t zero = columns->points.data<uint8_t>().front();
  Attributes attributes = node.attributes();
  for (const char* own : {"activations", "activation_scale", "activation_low", "activation_high"})
    attributes.erase(own);
  const Dynamic x = coded_image(node);
  const CodedOutput output = coded_output(node);
  Value* bias = integer_bias(node, weight);
  if (node.string_attribute("activations", "") == "static" && output.reader != nullptr &&
      (bias != nullptr) == (node.input(2) != nullptr)) {
    Tensor points = Tensor::zeros(DType::U8, columns->scales.shape());
    for (int64_t i = 0; i < points.size(); ++i) points.set_int(i, zero);
    Dynamic y = static_constants(*output.reader, true);
    y.codes =
        emit_.add("QLinearConv",
                  {x.codes, x.scale, x.point, kernel, emit_.constant(columns->scales, weight.name + "_scale"),
                   emit_.constant(std::move(points), weight.name + "_zero_point"), y.scale, y.point, bias},
                  attributes);
    return hand_on(output, y);
  }
  Value* point = emit_.constant(Tensor::scalar(zero), weight.name + "_zero_point");
  Value* sum =
      emit_.cast(emit_.add("ConvInteger", {x.codes, kernel, x.point, point}, attributes), DType::F32);
  // [M] along the channels.
  Shape along(form.kernel.size() + 1, 1);
  along[0] = form.outputs;
  const Tensor& scales = columns->scales;
  Value* scale = emit_.constant(scales.size() == 1 ? scales : scales.reshaped(along), weight.name + "_scale");
  Value* product = emit_.add("Mul", {sum, emit_.add("Mul", {x.scale, scale})});
  if (node.input(2) == nullptr) return product;
  return emit_.add("Add", {product, emit_.reshape(node.input(2), along)});
}

Value* WeightLowering::convolution(const Node& node) {
  const Weight& weight = weight_of(node.input(1));
  const KernelForm form(node, weight.is_quantized ? weight.codes.shape() : weight.dense.shape());
  const bool integers = weight.is_quantized && options_.style == WeightStyle::QOperator && !form.transposed;
  if (integers) return integer_convolution(node, weight, form);
  const bool rounds = weight.is_quantized && options_.style != WeightStyle::NBits;
  Value* x = rounds ? rounded_input(node) : node.input(0);
  const std::string kind = node.string_attribute("activations", "");
  if (rounds && options_.style == WeightStyle::QOperator && kind != "static" && !kind.empty()) {
    const Dynamic codes = coded_image(node);
    Value* real =
        emit_.add("Sub", {emit_.cast(codes.codes, DType::F32), emit_.cast(codes.point, DType::F32)});
    x = emit_.add("Mul", {real, codes.scale});
  }
  Value* kernel =
      weight.is_quantized ? dequantized_kernel(node, weight, form) : dense_kernel(node, weight, form);
  Attributes attributes = node.attributes();
  for (const char* own : {"activations", "activation_scale", "activation_low", "activation_high"})
    attributes.erase(own);
  // A bias that a normalization was folded into is f32, whatever the model is.
  Value* bias = node.input(2);
  if (bias != nullptr && bias->dtype() != node.input(0)->dtype())
    bias = emit_.cast(bias, node.input(0)->dtype());
  return emit_.add(form.transposed ? "ConvTranspose" : "Conv", {x, kernel, bias}, attributes);
}

}  // namespace quern::passes
