#include "runtime/plain/convolution.h"

#include <algorithm>

#include "runtime/plain/onednn.h"
#include "runtime/plain/register.h"

namespace quern::runtime::plain {
namespace {

using dnnl::memory;
using reference::Windows;

memory::format_tag plain_layout(size_t rank) {
  static constexpr memory::format_tag kTags[] = {memory::format_tag::abc, memory::format_tag::abcd,
                                                 memory::format_tag::abcde};
  return kTags[rank - 3];
}

memory::desc floats(const memory::dims& dims, memory::format_tag tag) {
  return {dims, memory::data_type::f32, tag};
}

// Of a convolution_forward or a deconvolution_forward.
template <class Primitive>
typename Primitive::primitive_desc primitive_of(const ConvolutionShape& c, dnnl::algorithm algorithm) {
  const auto any = memory::format_tag::any;
  const auto forward = dnnl::prop_kind::forward_inference;
  const memory::desc x = floats(c.x, any);
  const memory::desc w = floats(c.w, any);
  const memory::desc y = floats(c.y, any);
  const memory::desc bias = floats({c.y[1]}, memory::format_tag::a);
#if DNNL_VERSION_MAJOR >= 3
  if (c.bias)
    return {engine(), forward, algorithm, x, w, bias, y, c.strides, c.dilations, c.pads_begin, c.pads_end};
  return {engine(), forward, algorithm, x, w, y, c.strides, c.dilations, c.pads_begin, c.pads_end};
#else
  using Description = typename Primitive::desc;
  if (c.bias) {
    return {Description(forward, algorithm, x, w, bias, y, c.strides, c.dilations, c.pads_begin, c.pads_end),
            engine()};
  }
  return {Description(forward, algorithm, x, w, y, c.strides, c.dilations, c.pads_begin, c.pads_end),
          engine()};
#endif
}

template <class Primitive>
void run_primitive(const ConvolutionShape& c, dnnl::algorithm algorithm, const float* x, const float* w,
                   const float* bias, float* y) {
  const typename Primitive::primitive_desc description = primitive_of<Primitive>(c, algorithm);
  const memory source = reordered(view(floats(c.x, plain_layout(c.x.size())), x), description.src_desc());
  const memory weights =
      reordered(view(memory::desc(c.w, memory::data_type::f32, c.w_strides), w), description.weights_desc());
  const memory result = view(floats(c.y, plain_layout(c.y.size())), y);
  const bool in_place = description.dst_desc() == result.get_desc();
  const memory target = in_place ? result : memory(description.dst_desc(), engine());
  std::unordered_map<int, memory> arguments = {
      {DNNL_ARG_SRC, source}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, target}};
  if (c.bias) arguments[DNNL_ARG_BIAS] = view(description.bias_desc(), bias);
  execute(Primitive(description), arguments);
  if (!in_place) execute(dnnl::reorder(target, result), {{DNNL_ARG_FROM, target}, {DNNL_ARG_TO, result}});
}

}  // namespace

bool ConvolutionShape::is_plain() const {
  const auto is_negative = [](int64_t pad) { return pad < 0; };
  return std::none_of(pads_begin.begin(), pads_begin.end(), is_negative) &&
         std::none_of(pads_end.begin(), pads_end.end(), is_negative) &&
         std::all_of(y.begin(), y.end(), [](int64_t length) { return length > 0; });
}

// oneDNN counts dilation from 0, and pads so that the last window ends where the padded input does.
ConvolutionShape convolution_shape(const Shape& x, const ConvolutionCounts& counts, const Windows& windows,
                                   const WeightStrides& strides, bool transposed) {
  ConvolutionShape c{.transposed = transposed};
  c.x = x;
  c.y = {x[0], counts.groups * counts.outputs};
  c.w = {counts.outputs, counts.inputs};
  c.w_strides = {strides.output, strides.input};
  memory::dims kernel_strides(windows.kernel.size(), strides.tap);
  for (size_t i = windows.kernel.size(); i-- > 1;)
    kernel_strides[i - 1] = kernel_strides[i] * windows.kernel[i];
  for (size_t i = 0; i < windows.kernel.size(); ++i) {
    c.w.push_back(windows.kernel[i]);
    c.w_strides.push_back(kernel_strides[i]);
    // Of a transpose what slides over its output gives its input.
    c.y.push_back(transposed ? windows.input[i] : windows.output[i]);
    c.strides.push_back(windows.strides[i]);
    c.dilations.push_back(windows.dilations[i] - 1);
    c.pads_begin.push_back(windows.pads_begin[i]);
    const int64_t reach = windows.dilations[i] * (windows.kernel[i] - 1) + 1;
    c.pads_end.push_back((windows.output[i] - 1) * windows.strides[i] + reach - windows.input[i] -
                         windows.pads_begin[i]);
  }
  if (counts.groups > 1) {
    c.w.insert(c.w.begin(), counts.groups);
    c.w_strides.insert(c.w_strides.begin(), strides.group);
  }
  return c;
}

void convolve(const ConvolutionShape& shape, const float* x, const float* w, const float* bias, float* y) {
  if (shape.transposed) {
    run_primitive<dnnl::deconvolution_forward>(shape, dnnl::algorithm::deconvolution_direct, x, w, bias, y);
  } else {
    run_primitive<dnnl::convolution_forward>(shape, dnnl::algorithm::convolution_direct, x, w, bias, y);
  }
}

namespace {

// Conv: w [G * M, C, kernel...]; ConvTranspose: w [G * C, M, kernel...].
template <bool kTransposed>
void run_conv(KernelContext& context) {
  const Tensor& x = context.input(0);
  const Tensor& w = context.input(1);
  const Shape spatial = reference::spatial_dims(context, x);
  if (w.rank() != x.rank()) {
    context.fail("weights of shape ", to_string(w.shape()), " for ", to_string(x.shape()));
  }
  const Shape kernel(w.shape().begin() + 2, w.shape().end());
  if (context.node().ints_attribute("kernel_shape", kernel) != kernel) {
    context.fail("kernel_shape differs from the weights of shape ", to_string(w.shape()));
  }
  const int64_t groups = context.node().int_attribute("group", 1);
  const bool fits = groups >= 1 && w.dim(0) % groups == 0 && x.dim(1) % groups == 0 &&
                    (kTransposed ? w.dim(0) == x.dim(1) : groups * w.dim(1) == x.dim(1));
  if (!fits) {
    context.fail("weights of shape ", to_string(w.shape()), " in ", groups, " groups for an input of shape ",
                 to_string(x.shape()));
  }
  const Windows windows = kTransposed ? reference::transposed_windows(context, spatial, kernel)
                                      : reference::windows_of(context, spatial, kernel);
  const int64_t taps = element_count(kernel);
  const ConvolutionCounts counts{
      .groups = groups, .outputs = kTransposed ? w.dim(1) : w.dim(0) / groups, .inputs = x.dim(1) / groups};
  const int64_t of_group = counts.outputs * counts.inputs * taps;
  const WeightStrides strides = kTransposed ? WeightStrides{of_group, taps, counts.outputs * taps, 1}
                                            : WeightStrides{of_group, counts.inputs * taps, taps, 1};
  ConvolutionShape c = convolution_shape(x.shape(), counts, windows, strides, kTransposed);
  const Tensor* bias = context.optional_input(2);
  if (bias != nullptr && bias->size() != c.y[1]) {
    context.fail("a bias of ", bias->size(), " elements for ", c.y[1], " channels");
  }
  c.bias = bias != nullptr;
  if (!c.is_plain()) return run_reference(context);
  Tensor y = context.make(DType::F32, c.y);
  with_onednn(context, [&] {
    convolve(c, x.data<float>().data(), w.data<float>().data(), bias ? bias->data<float>().data() : nullptr,
             y.mutable_data<float>().data());
  });
  context.set_output(0, std::move(y));
}

// One to three spatial dimensions.
bool takes_convolution(const KernelContext& context) {
  if (!takes_floats(context)) return false;
  const Tensor* x = context.value(0).tensor();
  return x != nullptr && x->rank() >= 3 && x->rank() <= 5;
}

}  // namespace

void register_convolution(KernelTable& table) {
  const std::string name(kImplementation);
  table.add(kOnnxDomain, "Conv", {name, 1, run_conv<false>, takes_convolution});
  table.add(kOnnxDomain, "ConvTranspose", {name, 1, run_conv<true>, takes_convolution});
}

}  // namespace quern::runtime::plain
