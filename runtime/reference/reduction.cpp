// Reductions along axes. Sums are taken in double, or modulo 2^64 for integers.
#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

// A reduction starts from `start`, takes in the elements one by one, and ends in a result. A is what it adds
// up in: double for floating types, the integers themselves otherwise.
template <class A>
A plus(A a, A b) {
  if constexpr (std::is_integral_v<A>)
    return static_cast<A>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  return a + b;
}
template <class A>
A times(A a, A b) {
  if constexpr (std::is_integral_v<A>)
    return static_cast<A>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  return a * b;
}
template <class A>
A magnitude(A a) {
  if constexpr (std::is_floating_point_v<A>) return std::fabs(a);
  if constexpr (std::is_signed_v<A>)
    return a < 0 ? static_cast<A>(uint64_t{0} - static_cast<uint64_t>(a)) : a;
  return a;
}
template <class A>
A from_double(double value) {
  return static_cast<A>(value);
}

struct Sum {
  template <class A>
  static A start() {
    return A{0};
  }
  template <class A>
  static A take(A sum, A x) {
    return plus(sum, x);
  }
  template <class A>
  static A finish(A sum, int64_t) {
    return sum;
  }
};
struct Mean : Sum {
  template <class A>
  static A finish(A sum, int64_t count) {
    if constexpr (std::is_integral_v<A>)
      return count == 0 ? A{0} : static_cast<A>(sum / static_cast<A>(count));
    return sum / static_cast<A>(count);
  }
};
struct SumSquare : Sum {
  template <class A>
  static A take(A sum, A x) {
    return plus(sum, times(x, x));
  }
};
struct L1 : Sum {
  template <class A>
  static A take(A sum, A x) {
    return plus(sum, magnitude(x));
  }
};
struct L2 : SumSquare {
  template <class A>
  static A finish(A sum, int64_t) {
    return from_double<A>(std::sqrt(static_cast<double>(sum)));
  }
};
struct LogSum : Sum {
  template <class A>
  static A finish(A sum, int64_t) {
    return from_double<A>(std::log(static_cast<double>(sum)));
  }
};
struct Prod : Sum {
  template <class A>
  static A start() {
    return A{1};
  }
  template <class A>
  static A take(A product, A x) {
    return times(product, x);
  }
};
// An empty maximum is the least value of the type, as the specification has it.
struct Max : Sum {
  template <class A>
  static A start() {
    if constexpr (std::is_floating_point_v<A>) return -std::numeric_limits<A>::infinity();
    return std::numeric_limits<A>::min();
  }
  template <class A>
  static A take(A most, A x) {
    return most != most ? most : x != x ? x : std::max(most, x);
  }
};
struct Min : Sum {
  template <class A>
  static A start() {
    if constexpr (std::is_floating_point_v<A>) return std::numeric_limits<A>::infinity();
    return std::numeric_limits<A>::max();
  }
  template <class A>
  static A take(A least, A x) {
    return least != least ? least : x != x ? x : std::min(least, x);
  }
};

// How the elements of a tensor fall onto those of its reduction.
struct Reduction {
  std::vector<bool> reduced;  // by axis
  Shape kept;                 // with ones
  Shape dropped;              // without them
  int64_t length = 1;         // elements per result
};

// Nothing where no axes are given and the operator then does nothing.
std::optional<Reduction> reduction_of(KernelContext& context, const Tensor& x) {
  const std::optional<std::vector<int64_t>> axes = ints_from(context, "axes", 1);
  const bool none = !axes || axes->empty();
  if (none && context.node().int_attribute("noop_with_empty_axes", 0) != 0) return std::nullopt;
  Reduction r;
  r.reduced.assign(static_cast<size_t>(x.rank()), none);
  if (!none) {
    for (const int64_t axis : normalize_axes(context, *axes, x.rank()))
      r.reduced[static_cast<size_t>(axis)] = true;
  }
  for (size_t i = 0; i < r.reduced.size(); ++i) {
    const int64_t dim = x.shape()[i];
    r.kept.push_back(r.reduced[i] ? 1 : dim);
    if (r.reduced[i]) {
      r.length *= dim;
    } else {
      r.dropped.push_back(dim);
    }
  }
  return r;
}

template <class Op, class A, class C>
std::vector<C> reduce(const Elements<C>& in, const Shape& shape, const Reduction& r) {
  std::vector<A> sums(static_cast<size_t>(element_count(r.kept)), Op::template start<A>());
  int64_t i = 0;
  for_each_offset<1>(shape, {broadcast_strides(r.kept, shape)}, [&](int64_t to) {
    A& sum = sums[static_cast<size_t>(to)];
    sum = Op::template take<A>(sum, static_cast<A>(in[i++]));
  });
  std::vector<C> out;
  out.reserve(sums.size());
  for (const A sum : sums) out.push_back(static_cast<C>(Op::template finish<A>(sum, r.length)));
  return out;
}

Shape result_shape(const KernelContext& context, const Reduction& r) {
  return context.node().int_attribute("keepdims", 1) != 0 ? r.kept : r.dropped;
}

// The least and greatest values of narrow integers stand for those of their 64-bit computing type.
void saturate_empty(Tensor& out, DType dtype, bool greatest) {
  if (!is_integer(dtype) && dtype != DType::Bool) return;
  const int bits = dtype == DType::Bool ? 1 : bit_width(dtype);
  const bool is_signed = is_signed_integer(dtype);
  const uint64_t top =
      bits == 64 && !is_signed ? ~uint64_t{0} : (uint64_t{1} << (is_signed ? bits - 1 : bits)) - 1;
  const uint64_t bottom = is_signed ? ~top : 0;
  for (int64_t i = 0; i < out.size(); ++i) out.set_int(i, static_cast<int64_t>(greatest ? top : bottom));
}

template <class Op>
void run_reduce(KernelContext& context) {
  const Tensor& x = context.input(0);
  const std::optional<Reduction> r = reduction_of(context, x);
  if (!r) {
    // Still applies what the operator does to a single element, such as taking its square.
    Reduction alone;
    alone.kept = x.shape();
    with_computing_type(x.dtype(), [&]<class C>() {
      using A = std::conditional_t<std::is_floating_point_v<C>, double, C>;
      context.set_output(0,
                         to_tensor(x.dtype(), x.shape(), reduce<Op, A, C>(Elements<C>(x), x.shape(), alone)));
    });
    return;
  }
  context.checked_count(x.dtype(), r->kept);
  with_computing_type(x.dtype(), [&]<class C>() {
    using A = std::conditional_t<std::is_floating_point_v<C>, double, C>;
    Tensor out = to_tensor(x.dtype(), r->kept, reduce<Op, A, C>(Elements<C>(x), x.shape(), *r));
    if (r->length == 0 && (std::is_same_v<Op, Max> || std::is_same_v<Op, Min>)) {
      saturate_empty(out, x.dtype(), std::is_same_v<Op, Min>);
    }
    context.set_output(0, out.reshaped(result_shape(context, *r)));
  });
}

// log(sum(exp(x))) around the maximum, so that exp does not overflow.
void run_reduce_log_sum_exp(KernelContext& context) {
  const Tensor& x = context.input(0);
  const std::optional<Reduction> r = reduction_of(context, x);
  if (!r) {
    context.set_output(0, x);
    return;
  }
  const Elements<double> in(x);
  const std::vector<double> most = reduce<Max, double, double>(in, x.shape(), *r);
  std::vector<double> sums(most.size(), 0.0);
  int64_t i = 0;
  for_each_offset<1>(x.shape(), {broadcast_strides(r->kept, x.shape())}, [&](int64_t to) {
    const auto at = static_cast<size_t>(to);
    sums[at] += in[i] == most[at] ? 1.0 : std::exp(in[i] - most[at]);
    ++i;
  });
  for (size_t k = 0; k < sums.size(); ++k)
    sums[k] = std::log(sums[k]) + (std::isinf(most[k]) ? most[k] : most[k]);
  context.set_output(0, to_tensor(x.dtype(), result_shape(context, *r), sums));
}

template <class Better>
void run_arg(KernelContext& context) {
  const Tensor& x = context.input(0);
  const Node& node = context.node();
  const auto axis = static_cast<size_t>(normalize_axis(context, node.int_attribute("axis", 0), x.rank()));
  const bool last = node.int_attribute("select_last_index", 0) != 0;
  Shape kept = x.shape();
  const int64_t length = kept[axis];
  kept[axis] = 1;
  if (length == 0) context.fail("axis ", axis, " is empty");
  const int64_t inner = strides_of(x.shape())[axis];
  std::vector<int64_t> best(static_cast<size_t>(element_count(kept)), 0);
  with_computing_type(x.dtype(), [&]<class C>() {
    const Elements<C> in(x);
    for (size_t k = 0; k < best.size(); ++k) {
      const auto at = static_cast<int64_t>(k);
      const int64_t base = at / inner * inner * length + at % inner;
      for (int64_t i = 1; i < length; ++i) {
        const C candidate = in[base + i * inner];
        const C champion = in[base + best[k] * inner];
        if (Better{}(candidate, champion) || (last && candidate == champion)) best[k] = i;
      }
    }
  });
  Shape shape = kept;
  if (node.int_attribute("keepdims", 1) == 0) shape.erase(shape.begin() + static_cast<int64_t>(axis));
  context.set_output(0, Tensor::from<int64_t>(shape, best));
}

}  // namespace

void register_reduction(KernelTable& table) {
  add_reference(table, {"ReduceSum"}, run_reduce<Sum>);
  add_reference(table, {"ReduceMean"}, run_reduce<Mean>);
  add_reference(table, {"ReduceSumSquare"}, run_reduce<SumSquare>);
  add_reference(table, {"ReduceL1"}, run_reduce<L1>);
  add_reference(table, {"ReduceL2"}, run_reduce<L2>);
  add_reference(table, {"ReduceLogSum"}, run_reduce<LogSum>);
  add_reference(table, {"ReduceProd"}, run_reduce<Prod>);
  add_reference(table, {"ReduceMax"}, run_reduce<Max>);
  add_reference(table, {"ReduceMin"}, run_reduce<Min>);
  add_reference(table, {"ReduceLogSumExp"}, run_reduce_log_sum_exp);
  add_reference(table, {"ArgMax"}, run_arg<std::greater<>>);
  add_reference(table, {"ArgMin"}, run_arg<std::less<>>);
}

}  // namespace quern::runtime::reference
