// Element-wise operators of two inputs, with broadcasting.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

// The product of sign-agnostic arithmetic modulo 2^64: signed overflow is undefined in C++, wrapping is what
// the operators mean.
template <class C, class Op>
C wrapping(C a, C b, Op op) {
  if constexpr (std::is_integral_v<C>) {
    return static_cast<C>(op(static_cast<uint64_t>(a), static_cast<uint64_t>(b)));
  } else {
    return op(a, b);
  }
}

struct Add {
  template <class C>
  C operator()(C a, C b) const {
    return wrapping(a, b, [](auto x, auto y) { return x + y; });
  }
};
struct Sub {
  template <class C>
  C operator()(C a, C b) const {
    return wrapping(a, b, [](auto x, auto y) { return x - y; });
  }
};
struct Mul {
  template <class C>
  C operator()(C a, C b) const {
    return wrapping(a, b, [](auto x, auto y) { return x * y; });
  }
};
// Integers truncate; a division by zero, undefined in ONNX, gives 0.
struct Div {
  template <class C>
  C operator()(C a, C b) const {
    if constexpr (std::is_integral_v<C>) {
      if (b == 0) return 0;
      if constexpr (std::is_signed_v<C>) {
        if (b == -1) return Sub{}(C{0}, a);
      }
    }
    return a / b;
  }
};

template <class C, class Op>
std::vector<C> combine(KernelContext& context, const Tensor& a, const Tensor& b, const Shape& shape, Op op) {
  const Elements<C> x(a);
  const Elements<C> y(b);
  std::vector<C> out = make_buffer<C>(context, shape);
  size_t i = 0;
  for_each_offset<2>(shape, {broadcast_strides(a.shape(), shape), broadcast_strides(b.shape(), shape)},
                     [&](int64_t oa, int64_t ob) { out[i++] = op(x[oa], y[ob]); });
  return out;
}

void check_same_dtype(const KernelContext& context, const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype()) {
    context.fail("element types ", to_string(a.dtype()), " and ", to_string(b.dtype()), " do not agree");
  }
}

template <class Op>
void run_arithmetic(KernelContext& context) {
  const Tensor& a = context.input(0);
  const Tensor& b = context.input(1);
  check_same_dtype(context, a, b);
  const Shape shape = broadcast_shapes(a.shape(), b.shape());
  with_computing_type(a.dtype(), [&]<class C>() {
    context.set_output(0, to_tensor(a.dtype(), shape, combine<C>(context, a, b, shape, Op{})));
  });
}

}  // namespace

void register_binary(KernelTable& table) {
  add_reference(table, {"Add"}, run_arithmetic<Add>);
  add_reference(table, {"Sub"}, run_arithmetic<Sub>);
  add_reference(table, {"Mul"}, run_arithmetic<Mul>);
  add_reference(table, {"Div"}, run_arithmetic<Div>);
}

}  // namespace quern::runtime::reference
