// Element-wise operators of two and more inputs, with broadcasting.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

// Integer arithmetic is modulo 2^64: signed overflow is undefined in C++, wrapping is what the operators
// mean.
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
// The sign of the divisor, as Python's %.
struct Mod {
  template <class C>
  C operator()(C a, C b) const {
    if constexpr (std::is_integral_v<C>) {
      if (b == 0) return 0;
      if constexpr (std::is_signed_v<C>) {
        if (b == -1) return 0;
        const C rest = a % b;
        return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
      } else {
        return a % b;
      }
    } else {
      const C rest = std::fmod(a, b);
      return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
    }
  }
};
// The sign of the dividend, as C's fmod.
struct Fmod {
  template <class C>
  C operator()(C a, C b) const {
    if constexpr (std::is_integral_v<C>) {
      if (b == 0 || b == static_cast<C>(-1)) return b == 0 || std::is_signed_v<C> ? C{0} : a % b;
      return a % b;
    } else {
      return std::fmod(a, b);
    }
  }
};
struct Least {
  template <class C>
  C operator()(C a, C b) const {
    return a != a ? a : b != b ? b : std::min(a, b);
  }
};
struct Greatest {
  template <class C>
  C operator()(C a, C b) const {
    return a != a ? a : b != b ? b : std::max(a, b);
  }
};
template <class Bits>
struct Bitwise {
  template <class C>
  C operator()(C a, C b) const {
    if constexpr (std::is_integral_v<C>) {
      return static_cast<C>(Bits{}(static_cast<uint64_t>(a), static_cast<uint64_t>(b)));
    } else {
      return a;
    }
  }
};
struct ShiftLeft {
  uint64_t operator()(uint64_t a, uint64_t b) const { return b < 64 ? a << b : 0; }
};
struct ShiftRight {
  uint64_t operator()(uint64_t a, uint64_t b) const { return b < 64 ? a >> b : 0; }
};

template <class R, class C, class Op>
std::vector<R> combine(KernelContext& context, const Tensor& a, const Tensor& b, const Shape& shape, Op op) {
  const Elements<C> x(a);
  const Elements<C> y(b);
  std::vector<R> out = make_buffer<R>(context, shape);
  size_t i = 0;
  for_each_offset<2>(shape, {broadcast_strides(a.shape(), shape), broadcast_strides(b.shape(), shape)},
                     [&](int64_t oa, int64_t ob) { out[i++] = op(x[oa], y[ob]); });
  return out;
}

template <class Op>
Tensor arithmetic(KernelContext& context, const Tensor& a, const Tensor& b) {
  check_same_dtype(context, a, b);
  const Shape shape = broadcast_shapes(a.shape(), b.shape());
  return with_computing_type(a.dtype(), [&]<class C>() {
    return to_tensor(a.dtype(), shape, combine<C, C>(context, a, b, shape, Op{}));
  });
}

template <class Op>
void run_arithmetic(KernelContext& context) {
  context.set_output(0, arithmetic<Op>(context, context.input(0), context.input(1)));
}

template <class Op>
void run_variadic(KernelContext& context) {
  Tensor result = context.input(0);
  for (size_t i = 1; i < context.input_count(); ++i)
    result = arithmetic<Op>(context, result, context.input(i));
  context.set_output(0, std::move(result));
}

void run_mean(KernelContext& context) {
  Tensor sum = context.input(0);
  for (size_t i = 1; i < context.input_count(); ++i) sum = arithmetic<Add>(context, sum, context.input(i));
  const Tensor count = Tensor::scalar(static_cast<float>(context.input_count())).cast(sum.dtype());
  context.set_output(0, arithmetic<Div>(context, sum, count));
}

void run_mod(KernelContext& context) {
  if (context.node().int_attribute("fmod", 0) != 0) return run_arithmetic<Fmod>(context);
  run_arithmetic<Mod>(context);
}

void run_bit_shift(KernelContext& context) {
  const std::string direction = context.node().string_attribute("direction", "");
  if (direction == "LEFT") return run_arithmetic<Bitwise<ShiftLeft>>(context);
  if (direction == "RIGHT") return run_arithmetic<Bitwise<ShiftRight>>(context);
  context.fail("direction is '", direction, "', expected 'LEFT' or 'RIGHT'");
}

// The exponent may have a type of its own; the result has the base's.
void run_pow(KernelContext& context) {
  const Tensor& a = context.input(0);
  const Tensor& b = context.input(1);
  const Shape shape = broadcast_shapes(a.shape(), b.shape());
  if (is_integer(a.dtype()) && is_integer(b.dtype())) {
    const auto power = [](int64_t base, int64_t exponent) {
      if (exponent < 0)
        return base == 1 ? int64_t{1} : base == -1 ? (exponent % 2 != 0 ? int64_t{-1} : int64_t{1}) : 0;
      uint64_t result = 1;
      for (auto square = static_cast<uint64_t>(base); exponent != 0; exponent /= 2, square *= square) {
        if (exponent % 2 != 0) result *= square;
      }
      return static_cast<int64_t>(result);
    };
    const auto out = combine<int64_t, int64_t>(context, a, b, shape, power);
    context.set_output(0, to_tensor(a.dtype(), shape, out));
    return;
  }
  const auto out =
      combine<double, double>(context, a, b, shape, [](double x, double y) { return std::pow(x, y); });
  if (is_floating(a.dtype())) {
    context.set_output(0, to_tensor(a.dtype(), shape, out));
  } else {
    context.set_output(0, Tensor::from<double>(shape, out).cast(a.dtype()));
  }
}

void run_prelu(KernelContext& context) {
  const Tensor& x = context.input(0);
  const Tensor& slope = context.input(1);
  check_same_dtype(context, x, slope);
  if (broadcast_shapes(x.shape(), slope.shape()) != x.shape()) {
    context.fail("the slope of shape ", to_string(slope.shape()), " does not broadcast to ",
                 to_string(x.shape()));
  }
  with_computing_type(x.dtype(), [&]<class C>() {
    const auto out =
        combine<C, C>(context, x, slope, x.shape(), [](C a, C b) { return a < C{0} ? C(a * b) : a; });
    context.set_output(0, to_tensor(x.dtype(), x.shape(), out));
  });
}

template <class Op>
void run_comparison(KernelContext& context) {
  const Tensor& a = context.input(0);
  const Tensor& b = context.input(1);
  check_same_dtype(context, a, b);
  const Shape shape = broadcast_shapes(a.shape(), b.shape());
  Tensor out = context.make(DType::Bool, shape);
  const std::span<uint8_t> flags = out.mutable_data<uint8_t>();
  const std::array<Shape, 2> strides{broadcast_strides(a.shape(), shape),
                                     broadcast_strides(b.shape(), shape)};
  size_t i = 0;
  if (a.dtype() == DType::String) {
    for_each_offset<2>(shape, strides, [&](int64_t oa, int64_t ob) {
      flags[i++] = Op{}(a.strings()[static_cast<size_t>(oa)], b.strings()[static_cast<size_t>(ob)]);
    });
  } else {
    with_computing_type(a.dtype(), [&]<class C>() {
      const Elements<C> x(a);
      const Elements<C> y(b);
      for_each_offset<2>(shape, strides, [&](int64_t oa, int64_t ob) { flags[i++] = Op{}(x[oa], y[ob]); });
    });
  }
  context.set_output(0, std::move(out));
}

// Only ever called with numbers, yet compiled for strings too.
struct Both {
  template <class T>
  bool operator()(const T& a, const T& b) const {
    return a != T{} && b != T{};
  }
};
struct Either {
  template <class T>
  bool operator()(const T& a, const T& b) const {
    return a != T{} || b != T{};
  }
};

template <class Op>
void run_logical(KernelContext& context) {
  for (size_t i = 0; i < 2; ++i) {
    if (context.input(i).dtype() != DType::Bool) {
      context.fail("input ", i, " is ", to_string(context.input(i).dtype()), ", expected bool");
    }
  }
  run_comparison<Op>(context);
}

// Before version 7 the attribute `broadcast` stretched B alone, its first dimension standing at `axis` of A,
// or both aligned at the end. PRelu's slope stood at the channels.
template <KernelFunction run>
void run_before_7(KernelContext& context) {
  const Node& node = context.node();
  const Tensor& a = context.input(0);
  Tensor b = context.input(1);
  const bool is_prelu = node.op() == "PRelu";
  if (!is_prelu && node.int_attribute("broadcast", 0) == 0 && a.shape() != b.shape()) {
    context.fail("shapes ", to_string(a.shape()), " and ", to_string(b.shape()),
                 " differ, and broadcast is 0");
  }
  if (is_prelu ? b.rank() == 1 && a.rank() > 1 && b.size() > 1 : node.has_attribute("axis")) {
    const int64_t axis = normalize_axis(context, is_prelu ? 1 : node.int_attribute("axis", 0), a.rank());
    Shape shape = b.shape();
    if (axis + b.rank() > a.rank()) {
      context.fail("B of shape ", to_string(b.shape()), " does not fit at axis ", axis, " of ",
                   to_string(a.shape()));
    }
    shape.resize(static_cast<size_t>(a.rank() - axis), 1);
    b = b.reshaped(shape);
  }
  if (broadcast_shapes(a.shape(), b.shape()) != a.shape()) {
    context.fail("B of shape ", to_string(b.shape()), " does not broadcast to ", to_string(a.shape()));
  }
  KernelContext inner(node, {a, b}, context.limits());
  run(inner);
  context.set_output(0, std::move(inner.take_outputs().front()));
}

template <KernelFunction run>
void add_with_legacy(KernelTable& table, std::string_view op) {
  add_reference(table, {op}, run_before_7<run>);
  add_reference(table, {op}, run, 7);
}

}  // namespace

void register_binary(KernelTable& table) {
  add_with_legacy<run_arithmetic<Add>>(table, "Add");
  add_with_legacy<run_arithmetic<Sub>>(table, "Sub");
  add_with_legacy<run_arithmetic<Mul>>(table, "Mul");
  add_with_legacy<run_arithmetic<Div>>(table, "Div");
  add_with_legacy<run_pow>(table, "Pow");
  add_reference(table, {"Mod"}, run_mod);
  add_with_legacy<run_prelu>(table, "PRelu");
  add_reference(table, {"BitShift"}, run_bit_shift);
  add_reference(table, {"BitwiseAnd"}, run_arithmetic<Bitwise<std::bit_and<>>>);
  add_reference(table, {"BitwiseOr"}, run_arithmetic<Bitwise<std::bit_or<>>>);
  add_reference(table, {"BitwiseXor"}, run_arithmetic<Bitwise<std::bit_xor<>>>);
  add_reference(table, {"Sum"}, run_variadic<Add>);
  add_reference(table, {"Min"}, run_variadic<Least>);
  add_reference(table, {"Max"}, run_variadic<Greatest>);
  add_reference(table, {"Mean"}, run_mean);
  add_with_legacy<run_comparison<std::equal_to<>>>(table, "Equal");
  add_with_legacy<run_comparison<std::less<>>>(table, "Less");
  add_with_legacy<run_comparison<std::greater<>>>(table, "Greater");
  add_reference(table, {"LessOrEqual"}, run_comparison<std::less_equal<>>);
  add_reference(table, {"GreaterOrEqual"}, run_comparison<std::greater_equal<>>);
  add_with_legacy<run_logical<Both>>(table, "And");
  add_with_legacy<run_logical<Either>>(table, "Or");
  add_with_legacy<run_logical<std::not_equal_to<>>>(table, "Xor");
}

}  // namespace quern::runtime::reference
