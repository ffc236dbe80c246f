// Element-wise operators by the row kernels.
#include <array>

#include "runtime/cpu/row_kernels.h"
#include "runtime/plain/parallel.h"
#include "runtime/plain/register.h"
#include "runtime/reference/strided.h"

namespace quern::runtime::plain {
namespace {

using cpu::BinaryOp;
using cpu::Unary;

template <Unary kOp>
void run_unary(KernelContext& context) {
  const Tensor& x = context.input(0);
  Tensor y = context.make(DType::F32, x.shape());
  const float* from = x.data<float>().data();
  float* to = y.mutable_data<float>().data();
  constexpr int64_t kWorthAThread = 1 << 14;
  for_shares(x.size(), kWorthAThread, [&](int, int64_t first, int64_t count) {
    cpu::row_kernels().unary(kOp, from + first, to + first, count);
  });
  context.set_output(0, std::move(y));
}

void run_gelu(KernelContext& context) {
  if (context.node().string_attribute("approximate", "none") == "tanh")
    return run_unary<Unary::GeluTanh>(context);
  run_unary<Unary::Gelu>(context);
}

// The innermost dimensions along which each operand either runs on contiguously or stays where it is.
struct Run {
  size_t outer = 0;    // dimensions that are looped over
  int64_t length = 1;  // elements of the rest
  std::array<bool, 2> stays{false, false};
};

Run innermost_run(const Shape& shape, const std::array<Shape, 2>& strides) {
  Run run;
  for (run.outer = shape.size(); run.outer > 0; --run.outer) {
    const size_t axis = run.outer - 1;
    if (shape[axis] == 1) continue;
    for (size_t i = 0; i < 2; ++i) {
      if (run.length == 1) run.stays[i] = strides[i][axis] == 0;
      if (strides[i][axis] != (run.stays[i] ? 0 : run.length)) return run;
    }
    run.length *= shape[axis];
  }
  return run;
}

Tensor combined(const KernelContext& context, BinaryOp op, const Tensor& a, const Tensor& b) {
  const cpu::RowKernels& kernels = cpu::row_kernels();
  const Shape shape = broadcast_shapes(a.shape(), b.shape());
  Tensor out = context.make(DType::F32, shape);
  const std::array<Shape, 2> strides = {reference::broadcast_strides(a.shape(), shape),
                                        reference::broadcast_strides(b.shape(), shape)};
  const Run run = innermost_run(shape, strides);
  const Shape outer(shape.begin(), shape.begin() + static_cast<int64_t>(run.outer));
  const float* x = a.data<float>().data();
  const float* y = b.data<float>().data();
  float* to = out.mutable_data<float>().data();
  reference::for_each_offset<2>(outer, strides, [&](int64_t at_a, int64_t at_b) {
    if (run.stays[0] && run.stays[1]) {
      kernels.binary(op, x + at_a, y + at_b, to, 1);
    } else if (run.stays[0]) {
      kernels.scalar_binary(op, x[at_a], y + at_b, to, run.length);
    } else if (run.stays[1]) {
      kernels.binary_scalar(op, x + at_a, y[at_b], to, run.length);
    } else {
      kernels.binary(op, x + at_a, y + at_b, to, run.length);
    }
    to += run.length;
  });
  return out;
}

template <BinaryOp kOp>
void run_binary(KernelContext& context) {
  context.set_output(0, combined(context, kOp, context.input(0), context.input(1)));
}

// Squares, as exporters write the variance of a layer norm.
void run_pow(KernelContext& context) {
  const Tensor& x = context.input(0);
  const Tensor& exponent = context.input(1);
  if (exponent.size() != 1 || exponent.rank() > x.rank() || exponent.at(0) != 2.0)
    return run_reference(context);
  context.set_output(0, combined(context, BinaryOp::Multiply, x, x));
}

bool takes_pow(const KernelContext& context) {
  const Tensor* x = context.value(0).tensor();
  return x != nullptr && x->dtype() == DType::F32 && x->size() != 0;
}

bool takes_binary(const KernelContext& context) {
  return takes_floats(context) && context.input_count() == 2 && context.has_input(1);
}

}  // namespace

void register_elementwise(KernelTable& table) {
  const auto add = [&](std::string_view op, KernelFunction run, bool (*accepts)(const KernelContext&),
                       int since = 1) {
    table.add(kOnnxDomain, op, {std::string(kImplementation), since, run, accepts});
  };
  add("Relu", run_unary<Unary::Relu>, takes_floats);
  add("Sigmoid", run_unary<Unary::Sigmoid>, takes_floats);
  add("Tanh", run_unary<Unary::Tanh>, takes_floats);
  add("Erf", run_unary<Unary::Erf>, takes_floats);
  add("Exp", run_unary<Unary::Exp>, takes_floats);
  add("Gelu", run_gelu, takes_floats);
  table.add(kMicrosoftDomain, "Gelu",
            {std::string(kImplementation), 1, run_unary<Unary::Gelu>, takes_floats});
  // Before version 7 broadcasting was an attribute.
  add("Add", run_binary<BinaryOp::Add>, takes_binary, 7);
  add("Sub", run_binary<BinaryOp::Subtract>, takes_binary, 7);
  add("Mul", run_binary<BinaryOp::Multiply>, takes_binary, 7);
  add("Div", run_binary<BinaryOp::Divide>, takes_binary, 7);
  add("Pow", run_pow, takes_pow, 7);
}

}  // namespace quern::runtime::plain
