// Conv by oneDNN, in the layout that it prefers.
#include "runtime/plain/onednn.h"
#include "runtime/plain/register.h"
#include "runtime/reference/windows.h"

namespace quern::runtime::plain {
namespace {

using dnnl::memory;
using reference::Windows;

memory::format_tag plain_layout(size_t rank) {
  static constexpr memory::format_tag kTags[] = {memory::format_tag::abc, memory::format_tag::abcd,
                                                 memory::format_tag::abcde, memory::format_tag::abcdef};
  return kTags[rank - 3];
}

memory::desc floats(const memory::dims& dims, memory::format_tag tag) {
  return {dims, memory::data_type::f32, tag};
}

struct Convolution {
  memory::dims x, w, y;  // w: [groups, outputs, inputs, kernel...] of more than one group
  memory::dims strides, dilations, pads_begin, pads_end;
  bool bias = false;
};

// oneDNN counts dilation from 0, and pads so that the last window ends where the padded input does.
Convolution convolution_of(const KernelContext& context, const Tensor& x, const Tensor& w,
                           const Windows& windows) {
  Convolution c;
  const int64_t groups = context.node().int_attribute("group", 1);
  if (groups < 1 || w.dim(0) % groups != 0 || groups * w.dim(1) != x.dim(1)) {
    context.fail("weights of shape ", to_string(w.shape()), " in ", groups, " groups for an input of shape ",
                 to_string(x.shape()));
  }
  c.x = x.shape();
  c.w = w.shape();
  if (groups > 1) {
    c.w[0] /= groups;
    c.w.insert(c.w.begin(), groups);
  }
  c.y = {x.dim(0), w.dim(0)};
  for (size_t i = 0; i < windows.input.size(); ++i) {
    c.y.push_back(windows.output[i]);
    c.strides.push_back(windows.strides[i]);
    c.dilations.push_back(windows.dilations[i] - 1);
    c.pads_begin.push_back(windows.pads_begin[i]);
    const int64_t reach = windows.dilations[i] * (windows.kernel[i] - 1) + 1;
    c.pads_end.push_back((windows.output[i] - 1) * windows.strides[i] + reach - windows.input[i] -
                         windows.pads_begin[i]);
  }
  c.bias = context.has_input(2);
  return c;
}

dnnl::convolution_forward::primitive_desc primitive_of(const Convolution& c) {
  const auto any = memory::format_tag::any;
  const auto forward = dnnl::prop_kind::forward_inference;
  const auto direct = dnnl::algorithm::convolution_direct;
  const memory::desc x = floats(c.x, any);
  const memory::desc w = floats(c.w, any);
  const memory::desc y = floats(c.y, any);
  const memory::desc bias = floats({c.y[1]}, memory::format_tag::a);
#if DNNL_VERSION_MAJOR >= 3
  if (c.bias)
    return {engine(), forward, direct, x, w, bias, y, c.strides, c.dilations, c.pads_begin, c.pads_end};
  return {engine(), forward, direct, x, w, y, c.strides, c.dilations, c.pads_begin, c.pads_end};
#else
  using Description = dnnl::convolution_forward::desc;
  if (c.bias) {
    return {Description(forward, direct, x, w, bias, y, c.strides, c.dilations, c.pads_begin, c.pads_end),
            engine()};
  }
  return {Description(forward, direct, x, w, y, c.strides, c.dilations, c.pads_begin, c.pads_end), engine()};
#endif
}

void convolve(const Convolution& c, const Tensor& x, const Tensor& w, const Tensor* bias, Tensor& y) {
  const dnnl::convolution_forward::primitive_desc description = primitive_of(c);
  const memory source =
      reordered(view(floats(c.x, plain_layout(c.x.size())), x.bytes()), description.src_desc());
  const memory weights =
      reordered(view(floats(c.w, plain_layout(c.w.size())), w.bytes()), description.weights_desc());
  const memory result = view(floats(c.y, plain_layout(c.y.size())), y.mutable_bytes());
  const bool in_place = description.dst_desc() == result.get_desc();
  const memory target = in_place ? result : memory(description.dst_desc(), engine());
  std::unordered_map<int, memory> arguments = {
      {DNNL_ARG_SRC, source}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, target}};
  if (bias != nullptr) arguments[DNNL_ARG_BIAS] = view(description.bias_desc(), bias->bytes());
  execute(dnnl::convolution_forward(description), arguments);
  if (!in_place) execute(dnnl::reorder(target, result), {{DNNL_ARG_FROM, target}, {DNNL_ARG_TO, result}});
}

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
  const Windows windows = reference::windows_of(context, spatial, kernel);
  const Tensor* bias = context.optional_input(2);
  if (bias != nullptr && bias->size() != w.dim(0)) {
    context.fail("a bias of ", bias->size(), " elements for ", w.dim(0), " channels");
  }
  const Convolution c = convolution_of(context, x, w, windows);
  for (size_t i = 0; i < spatial.size(); ++i) {
    // Cropping, and windows that fit nowhere.
    if (c.pads_begin[i] < 0 || windows.pads_end[i] < 0 || windows.output[i] < 1)
      return run_reference(context);
  }
  Tensor y = context.make(DType::F32, c.y);
  with_onednn(context, [&] { convolve(c, x, w, bias, y); });
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
  table.add(kOnnxDomain, "Conv", {std::string(kImplementation), 1, run_conv, takes_convolution});
}

}  // namespace quern::runtime::plain
