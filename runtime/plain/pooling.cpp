// MaxPool and AveragePool by oneDNN; pooling over whole planes by the row kernels.
#include <algorithm>

#include "runtime/cpu/row_kernels.h"
#include "runtime/plain/onednn.h"
#include "runtime/plain/register.h"
#include "runtime/reference/windows.h"

namespace quern::runtime::plain {
namespace {

using dnnl::memory;
using reference::Windows;

memory::format_tag layout(size_t rank) {
  return rank == 3 ? memory::format_tag::abc
                   : (rank == 4 ? memory::format_tag::abcd : memory::format_tag::abcde);
}

// What oneDNN's pooling cannot say: cropping, dilation, windows that fit nowhere or lie in padding alone, and
// averages that count padding where a window of a ceiling reaches beyond it. And windows far larger than the
// input, whose every element it would visit.
bool is_plain(const Windows& w, bool counts_padding) {
  for (size_t i = 0; i < w.input.size(); ++i) {
    const int64_t needed = (w.output[i] - 1) * w.strides[i] + w.kernel[i] - w.input[i] - w.pads_begin[i];
    if (w.kernel[i] / 2 > w.input[i]) return false;
    if (w.output[i] < 1 || w.dilations[i] != 1 || w.pads_begin[i] < 0 || w.pads_end[i] < 0) return false;
    if (w.pads_begin[i] >= w.kernel[i] || needed >= w.kernel[i]) return false;
    if (counts_padding && needed > w.pads_end[i]) return false;
  }
  return true;
}

void run_pool(KernelContext& context, dnnl::algorithm algorithm) {
  const Tensor& x = context.input(0);
  const Windows w = reference::windows_of(context, reference::spatial_dims(context, x),
                                          context.node().ints_attribute("kernel_shape", {}), true);
  if (!is_plain(w, algorithm == dnnl::algorithm::pooling_avg_include_padding)) return run_reference(context);
  Shape shape{x.dim(0), x.dim(1)};
  shape.insert(shape.end(), w.output.begin(), w.output.end());
  memory::dims pads_end;
  for (size_t i = 0; i < w.input.size(); ++i) {
    pads_end.push_back((w.output[i] - 1) * w.strides[i] + w.kernel[i] - w.input[i] - w.pads_begin[i]);
  }
  Tensor y = context.make(DType::F32, shape);
  with_onednn(context, [&] {
    const memory::desc from(x.shape(), memory::data_type::f32, layout(x.shape().size()));
    const memory::desc to(shape, memory::data_type::f32, layout(shape.size()));
    const auto forward = dnnl::prop_kind::forward_inference;
#if DNNL_VERSION_MAJOR >= 3
    const memory::dims no_dilation(w.kernel.size(), 0);
    const dnnl::pooling_forward::primitive_desc description(engine(), forward, algorithm, from, to, w.strides,
                                                            w.kernel, no_dilation, w.pads_begin, pads_end);
#else
    const dnnl::pooling_forward::primitive_desc description(
        dnnl::pooling_forward::desc(forward, algorithm, from, to, w.strides, w.kernel, w.pads_begin, pads_end),
        engine());
#endif
    execute(dnnl::pooling_forward(description),
            {{DNNL_ARG_SRC, view(from, x.bytes())}, {DNNL_ARG_DST, view(to, y.mutable_bytes())}});
  });
  context.set_output(0, std::move(y));
}

void run_max_pool(KernelContext& context) {
  run_pool(context, dnnl::algorithm::pooling_max);
}

void run_average_pool(KernelContext& context) {
  run_pool(context, context.node().int_attribute("count_include_pad", 0) != 0
                        ? dnnl::algorithm::pooling_avg_include_padding
                        : dnnl::algorithm::pooling_avg_exclude_padding);
}

bool takes_pool(const KernelContext& context) {
  if (!takes_floats(context) || context.wants_output(1)) return false;
  const Tensor* x = context.value(0).tensor();
  return x != nullptr && x->rank() >= 3 && x->rank() <= 5;
}

template <cpu::ReduceOp kOp>
void run_global(KernelContext& context) {
  const Tensor& x = context.input(0);
  if (x.rank() < 3) return run_reference(context);
  Shape shape = x.shape();
  std::fill(shape.begin() + 2, shape.end(), 1);
  Tensor y = context.make(DType::F32, shape);
  const int64_t plane = x.size() / y.size();
  const float* from = x.data<float>().data();
  for (float& value : y.mutable_data<float>()) {
    value = cpu::row_kernels().reduce(kOp, from, plane);
    from += plane;
  }
  context.set_output(0, std::move(y));
}

}  // namespace

void register_pooling(KernelTable& table) {
  const auto add = [&](std::string_view op, KernelFunction run, bool (*accepts)(const KernelContext&)) {
    table.add(kOnnxDomain, op, {std::string(kImplementation), 1, run, accepts});
  };
  add("MaxPool", run_max_pool, takes_pool);
  add("AveragePool", run_average_pool, takes_pool);
  add("GlobalAveragePool", run_global<cpu::ReduceOp::Mean>, takes_floats);
  add("GlobalMaxPool", run_global<cpu::ReduceOp::Max>, takes_floats);
}

}  // namespace quern::runtime::plain
