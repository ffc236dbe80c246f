// ai.quern: convolutions whose weight is a matrix, by the kernels of ai.onnx.
#include "ir/products.h"
#include "runtime/reference/register.h"
#include "runtime/reference/sample_range.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

bool holds_codes(const Constant* constant) {
  if (constant == nullptr) return false;
  if (const auto* quantized = std::get_if<QuantizedTensor>(constant))
    return is_integer(quantized->scheme.code);
  const auto* packed = std::get_if<PackedTensor>(constant);
  return packed != nullptr && packed->spec().is_quantized() && is_integer(packed->spec().dtype());
}

}  // namespace

bool rounds_input(const KernelContext& context) {
  if (activation_scheme(context.node()).kind == ActivationScheme::Kind::None) return false;
  const RuntimeValue& weight = context.value(1);
  if (weight.quantized()) return is_integer(weight.quantized()->scheme.code);
  if (weight.packed())
    return weight.packed()->spec().is_quantized() && is_integer(weight.packed()->spec().dtype());
  // The plan may have made floats of a constant of codes.
  return context.node().input(1) != nullptr && holds_codes(context.node().input(1)->constant());
}

namespace {

// [M, taps * C / G] as Conv's [M, C / G, kernel...], or ConvTranspose's [C, M / G, kernel...].
Tensor kernel_tensor(const KernelContext& context, const Tensor& matrix, const Shape& kernel,
                     bool transposed) {
  const int64_t groups = context.node().int_attribute("group", 1);
  const int64_t taps = element_count(kernel);
  if (matrix.rank() != 2 || groups < 1 || taps < 1 || matrix.dim(0) % groups != 0 ||
      matrix.dim(1) % taps != 0) {
    context.fail("a weight of shape ", to_string(matrix.shape()), " for a kernel of shape ",
                 to_string(kernel), " in ", groups, " groups");
  }
  const int64_t outputs = matrix.dim(0), per_group = outputs / groups, channels = matrix.dim(1) / taps;
  const Elements<float> from(matrix);
  std::vector<float> to = make_buffer<float>(context, {outputs, channels, taps});
  for (int64_t m = 0; m < outputs; ++m) {
    for (int64_t t = 0; t < taps; ++t) {
      for (int64_t c = 0; c < channels; ++c) {
        const int64_t row =
            transposed ? (m / per_group * channels + c) * per_group + m % per_group : m * channels + c;
        to[static_cast<size_t>(row * taps + t)] = from[(m * taps + t) * channels + c];
      }
    }
  }
  Shape shape = transposed ? Shape{groups * channels, per_group} : Shape{outputs, channels};
  shape.insert(shape.end(), kernel.begin(), kernel.end());
  return Tensor::from<float>(shape, to);
}

template <bool kTransposed>
void run(KernelContext& context) {
  const Node& node = context.node();
  const bool rounds = rounds_input(context);  // before input() makes floats of the codes
  const Tensor& x = context.input(0);
  if (!is_floating(x.dtype())) context.fail("x must be floats");
  const Tensor weight =
      kernel_tensor(context, context.input(1), node.ints_attribute("kernel_shape", {}), kTransposed);
  std::vector<RuntimeValue> inputs = {
      rounds ? rounded_samples(x, activation_scheme(node)) : x.cast(DType::F32), weight};
  if (const Tensor* bias = context.optional_input(2)) inputs.emplace_back(bias->cast(DType::F32));
  KernelContext inner(node, std::move(inputs), context.limits());
  const auto kernels = KernelTable::instance().find(kOnnxDomain, kTransposed ? "ConvTranspose" : "Conv",
                                                    newest_opset(kOnnxDomain));
  select_kernel(kernels, kReferenceImplementation, inner).run(inner);
  context.set_output(0, inner.take_outputs().front().dense().cast(x.dtype()));
}

}  // namespace

void register_quern_convolution(KernelTable& table) {
  const std::string implementation(kReferenceImplementation);
  table.add(kQuernDomain, "Convolution", {implementation, 1, run<false>, nullptr});
  table.add(kQuernDomain, "ConvolutionTranspose", {implementation, 1, run<true>, nullptr});
}

}  // namespace quern::runtime::reference
