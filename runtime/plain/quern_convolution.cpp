// Convolution and ConvolutionTranspose of ai.quern: floats, and few inputs for each output (groups), by
// oneDNN; packed codes by the kernels of decoders.
#include "runtime/plain/coded_convolution.h"
#include "runtime/plain/convolution.h"
#include "runtime/plain/onednn.h"
#include "runtime/plain/register.h"
#include "runtime/reference/sample_range.h"

namespace quern::runtime::plain {
namespace {

using reference::Windows;

Tensor as_floats(const Tensor& tensor) {
  return tensor.dtype() == DType::F32 ? tensor : tensor.cast(DType::F32);
}

struct Task {
  Tensor x;
  const Tensor* bias = nullptr;  // F32 or null
  int64_t groups = 1;
  int64_t outputs = 0;
  Windows windows;
  bool transposed = false;
};

Tensor run_floats(KernelContext& context, const Task& task, const Tensor& bias) {
  const bool rounds = reference::rounds_input(context);
  const Tensor x = rounds ? reference::rounded_samples(task.x, activation_scheme(context.node())) : task.x;
  const Tensor weight = as_floats(context.input(1));
  const int64_t inputs = x.dim(1) / task.groups;
  const int64_t cols = weight.dim(1);
  const ConvolutionCounts counts{task.groups, task.outputs / task.groups, inputs};
  const WeightStrides strides{counts.outputs * cols, cols, 1, inputs};
  ConvolutionShape c = convolution_shape(x.shape(), counts, task.windows, strides, task.transposed);
  c.bias = bias.defined();
  if (!c.is_plain()) return {};
  Tensor y = context.make(DType::F32, c.y);
  with_onednn(context, [&] {
    convolve(c, x.data<float>().data(), weight.data<float>().data(),
             c.bias ? bias.data<float>().data() : nullptr, y.mutable_data<float>().data());
  });
  return y;
}

Tensor run_codes(const KernelContext& context, const Task& task, const PackedTensor& weight,
                 const Tensor& bias) {
  const Windows& w = task.windows;
  const Shape& spatial = task.transposed ? w.input : w.output;
  Shape shape = {task.x.dim(0), task.outputs};
  shape.insert(shape.end(), spatial.begin(), spatial.end());
  if (element_count(shape) == 0) return {};
  Tensor y = context.make(DType::F32, shape);
  const CodedConvolution convolution{.weight = &weight,
                                     .scheme = activation_scheme(context.node()),
                                     .windows = &w,
                                     .transposed = task.transposed,
                                     .batch = task.x.dim(0),
                                     .channels = task.x.dim(1)};
  convolve_codes(context, convolution, task.x.data<float>().data(),
                 bias.defined() ? bias.data<float>().data() : nullptr, y.mutable_data<float>().data());
  return y;
}

template <bool kTransposed>
void run(KernelContext& context) {
  const Node& node = context.node();
  const Tensor& x = context.input(0);
  const PackedTensor* packed = context.value(1).packed();
  const Shape shape = packed ? packed->shape() : context.value(1).tensor()->shape();
  Task task{.x = as_floats(x), .groups = node.int_attribute("group", 1), .transposed = kTransposed};
  const Shape kernel = node.ints_attribute("kernel_shape", {});
  const Shape spatial = reference::spatial_dims(context, x);
  const Tensor* given = context.optional_input(2);
  const bool fits = shape.size() == 2 && task.groups >= 1 && x.dim(1) % task.groups == 0 &&
                    shape[0] % task.groups == 0 && kernel.size() == spatial.size() &&
                    shape[1] == element_count(kernel) * (x.dim(1) / task.groups) &&
                    (given == nullptr || given->shape() == Shape{shape[0]});
  if (!fits) return run_reference(context);
  task.outputs = shape[0];
  task.windows = kTransposed ? reference::transposed_windows(context, spatial, kernel)
                             : reference::windows_of(context, spatial, kernel);
  const Tensor bias = given ? as_floats(*given) : Tensor();
  const bool coded = packed != nullptr && task.groups == 1;
  Tensor y = coded ? run_codes(context, task, *packed, bias) : run_floats(context, task, bias);
  if (!y.defined()) return run_reference(context);
  context.set_output(0, y.dtype() == x.dtype() ? y : y.cast(x.dtype()));
}

bool takes(const KernelContext& context) {
  const Tensor* x = context.has_input(0) ? context.value(0).tensor() : nullptr;
  if (x == nullptr || !is_floating(x->dtype()) || bit_width(x->dtype()) > 32 || x->size() == 0 ||
      x->rank() < 3 || x->rank() > 5 || !context.has_input(1)) {
    return false;
  }
  if (context.has_input(2) && (!context.value(2).tensor() || !is_floating(context.value(2).dtype())))
    return false;
  const RuntimeValue& weight = context.value(1);
  if (weight.packed() != nullptr)
    return context.node().int_attribute("group", 1) > 1 || takes_packed_convolution(weight.packed()->spec());
  return weight.tensor() != nullptr && is_floating(weight.dtype()) && weight.tensor()->size() != 0;
}

}  // namespace

void register_quern_convolution(KernelTable& table) {
  const std::string name(kImplementation);
  table.add(kQuernDomain, "Convolution", {name, 1, run<false>, takes});
  table.add(kQuernDomain, "ConvolutionTranspose", {name, 1, run<true>, takes});
}

}  // namespace quern::runtime::plain
