// Operators that work along rows: Softmax, the layer norms, means.
#include <vector>

#include "runtime/cpu/row_kernels.h"
#include "runtime/plain/parallel.h"
#include "runtime/plain/register.h"
#include "runtime/reference/values.h"

namespace quern::runtime::plain {
namespace {

template <class Body>
void for_rows(int64_t rows, int64_t width, const Body& body) {
  for_row_shares(rows, width, [&](int, int64_t first, int64_t count) {
    for (int64_t row = first; row < first + count; ++row) body(row);
  });
}

// Before version 13 all dimensions from the axis on are one row, and the axis is 1 where none is given.
void run_softmax(KernelContext& context) {
  const Tensor& x = context.input(0);
  const bool flattens = context.opset() < 13;
  const int64_t axis =
      reference::normalize_axis(context, context.node().int_attribute("axis", flattens ? 1 : -1), x.rank());
  if (x.rank() == 0 || (!flattens && axis != x.rank() - 1)) return run_reference(context);
  const int64_t width = element_count(Shape(x.shape().begin() + axis, x.shape().end()));
  Tensor y = context.make(DType::F32, x.shape());
  const float* from = x.data<float>().data();
  float* to = y.mutable_data<float>().data();
  for_rows(x.size() / width, width,
           [&](int64_t row) { cpu::row_kernels().softmax(from + row * width, to + row * width, width); });
  context.set_output(0, std::move(y));
}

template <bool kSubtractMean>
void run_norm(KernelContext& context) {
  const Tensor& x = context.input(0);
  const Tensor& scale = context.input(1);
  const Tensor* shift = context.optional_input(2);
  const int64_t axis = reference::normalize_axis(context, context.node().int_attribute("axis", -1), x.rank());
  const int64_t width = element_count(Shape(x.shape().begin() + axis, x.shape().end()));
  if (scale.size() != width || (shift != nullptr && shift->size() != width)) return run_reference(context);
  Tensor y = context.make(DType::F32, x.shape());
  const float* from = x.data<float>().data();
  float* to = y.mutable_data<float>().data();
  const float epsilon = context.node().float_attribute("epsilon", 1e-5F);
  for_rows(x.size() / width, width, [&](int64_t r) {
    cpu::NormRow row;
    row.x = from + r * width;
    row.out = to + r * width;
    row.weight = scale.data<float>().data();
    row.shift = shift != nullptr ? shift->data<float>().data() : nullptr;
    row.size = width;
    row.epsilon = epsilon;
    kSubtractMean ? cpu::row_kernels().layer_norm(row) : cpu::row_kernels().rms_norm(row);
  });
  context.set_output(0, std::move(y));
}

bool takes_norm(const KernelContext& context) {
  return takes_floats(context) && context.has_input(1) && !context.wants_output(1) &&
         !context.wants_output(2);
}

// Over the last dimension, axes an attribute up to version 17 and an input from 18 on.
template <cpu::ReduceOp kOp>
void run_reduce(KernelContext& context) {
  const Tensor& x = context.input(0);
  std::vector<int64_t> axes = context.node().ints_attribute("axes", {});
  if (context.has_input(1)) axes = reference::int_values(context.input(1));
  if (x.rank() == 0 || axes.size() != 1 || (axes[0] != -1 && axes[0] != x.rank() - 1))
    return run_reference(context);
  Shape shape = x.shape();
  const int64_t width = shape.back();
  shape.pop_back();
  if (context.node().int_attribute("keepdims", 1) != 0) shape.push_back(1);
  Tensor y = context.make(DType::F32, shape);
  const float* from = x.data<float>().data();
  for (float& value : y.mutable_data<float>()) {
    value = cpu::row_kernels().reduce(kOp, from, width);
    from += width;
  }
  context.set_output(0, std::move(y));
}

bool takes_reduce(const KernelContext& context) {
  const Tensor* x = context.value(0).tensor();
  return x != nullptr && x->dtype() == DType::F32 && x->size() != 0;
}

}  // namespace

void register_rows(KernelTable& table) {
  const auto add = [&](std::string_view op, KernelFunction run, bool (*accepts)(const KernelContext&)) {
    table.add(kOnnxDomain, op, {std::string(kImplementation), 1, run, accepts});
  };
  add("Softmax", run_softmax, takes_floats);
  add("LayerNormalization", run_norm<true>, takes_norm);
  add("RMSNormalization", run_norm<false>, takes_norm);
  add("SimplifiedLayerNormalization", run_norm<false>, takes_norm);
  add("ReduceMean", run_reduce<cpu::ReduceOp::Mean>, takes_reduce);
  add("ReduceSum", run_reduce<cpu::ReduceOp::Sum>, takes_reduce);
}

}  // namespace quern::runtime::plain
