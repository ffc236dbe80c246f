// Operators that work along one axis and keep it: softmax and its kin, cumulative sums, TopK.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/reference/axis.h"
#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {

AxisLayout axis_layout(const Shape& shape, int64_t axis) {
  AxisLayout layout;
  layout.length = shape[static_cast<size_t>(axis)];
  layout.inner = element_count(Shape(shape.begin() + axis + 1, shape.end()));
  layout.outer = element_count(Shape(shape.begin(), shape.begin() + axis));
  return layout;
}

namespace {

// Rows of doubles, each transformed on its own.
template <class Row>
void run_rows(KernelContext& context, const AxisLayout& layout, Row row) {
  const Tensor& x = context.input(0);
  const Elements<double> in(x);
  std::vector<double> out = make_buffer<double>(context, x.shape());
  std::vector<double> values(static_cast<size_t>(layout.length));
  for (int64_t k = 0; k < layout.rows(); ++k) {
    for (int64_t i = 0; i < layout.length; ++i) values[static_cast<size_t>(i)] = in[layout.at(k, i)];
    row(values);
    for (int64_t i = 0; i < layout.length; ++i) {
      out[static_cast<size_t>(layout.at(k, i))] = values[static_cast<size_t>(i)];
    }
  }
  context.set_output(0, to_tensor(x.dtype(), x.shape(), out));
}

// Up to version 12 the input is flattened to two dimensions at the axis (default 1), and the second is
// normalised.
AxisLayout softmax_layout(const KernelContext& context, const Tensor& x) {
  const bool flattened = context.opset() < 13;
  const int64_t rank = x.rank();
  if (rank == 0) return {1, 1, 1};
  const int64_t given = context.node().int_attribute("axis", flattened ? 1 : -1);
  if (flattened && given == rank) return {x.size(), 1, 1};
  const int64_t axis = normalize_axis(context, given, rank);
  AxisLayout layout = axis_layout(x.shape(), axis);
  if (flattened) {
    layout.length *= layout.inner;
    layout.inner = 1;
  }
  return layout;
}

// Returns the logarithm of the sum of exponentials after the maximum was subtracted from the row.
double subtract_maximum(std::vector<double>& row) {
  if (row.empty()) return 0;
  const double most = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (double& value : row) {
    value -= most;
    sum += std::exp(value);
  }
  return std::log(sum);
}

void run_softmax(KernelContext& context) {
  run_rows(context, softmax_layout(context, context.input(0)), [](std::vector<double>& row) {
    if (row.empty()) return;
    const double most = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (double& value : row) sum += value = std::exp(value - most);
    for (double& value : row) value /= sum;
  });
}

void run_log_softmax(KernelContext& context) {
  run_rows(context, softmax_layout(context, context.input(0)), [](std::vector<double>& row) {
    const double log_sum = subtract_maximum(row);
    for (double& value : row) value -= log_sum;
  });
}

void run_hardmax(KernelContext& context) {
  run_rows(context, softmax_layout(context, context.input(0)), [](std::vector<double>& row) {
    const auto top = std::max_element(row.begin(), row.end()) - row.begin();
    for (double& value : row) value = 0;
    if (!row.empty()) row[static_cast<size_t>(top)] = 1;
  });
}

void run_lp_normalization(KernelContext& context) {
  const Tensor& x = context.input(0);
  const int64_t axis = normalize_axis(context, context.node().int_attribute("axis", -1), x.rank());
  const int64_t p = context.node().int_attribute("p", 2);
  if (p != 1 && p != 2) context.fail("p is ", p, ", expected 1 or 2");
  run_rows(context, axis_layout(x.shape(), axis), [p](std::vector<double>& row) {
    double norm = 0;
    for (const double value : row) norm += p == 1 ? std::fabs(value) : value * value;
    if (p == 2) norm = std::sqrt(norm);
    for (double& value : row) value = norm == 0 ? 0 : value / norm;
  });
}

template <bool kProduct>
void run_cumulative(KernelContext& context) {
  const Tensor& x = context.input(0);
  const AxisLayout layout = axis_layout(x.shape(), normalize_axis(context, int_scalar(context, 1), x.rank()));
  const bool exclusive = context.node().int_attribute("exclusive", 0) != 0;
  const bool reverse = context.node().int_attribute("reverse", 0) != 0;
  with_computing_type(x.dtype(), [&]<class C>() {
    using A = std::conditional_t<std::is_floating_point_v<C>, double, uint64_t>;
    const Elements<C> in(x);
    std::vector<C> out(in.size());
    for (int64_t k = 0; k < layout.rows(); ++k) {
      A total = kProduct ? 1 : 0;
      for (int64_t i = 0; i < layout.length; ++i) {
        const int64_t at = layout.at(k, reverse ? layout.length - 1 - i : i);
        const A before = total;
        if constexpr (kProduct) {
          total *= static_cast<A>(in[at]);
        } else {
          total += static_cast<A>(in[at]);
        }
        out[static_cast<size_t>(at)] = static_cast<C>(exclusive ? before : total);
      }
    }
    context.set_output(0, to_tensor(x.dtype(), x.shape(), out));
  });
}

// Ties go to the lower index.
void run_top_k(KernelContext& context) {
  const Tensor& x = context.input(0);
  const Node& node = context.node();
  const int64_t axis = normalize_axis(context, node.int_attribute("axis", -1), x.rank());
  const int64_t k = context.has_input(1) ? int_scalar(context, 1) : node.int_attribute("k", 0);
  const bool largest = node.int_attribute("largest", 1) != 0;
  const AxisLayout layout = axis_layout(x.shape(), axis);
  if (k < 0 || k > layout.length) context.fail("k is ", k, " for an axis of length ", layout.length);
  Shape shape = x.shape();
  shape[static_cast<size_t>(axis)] = k;
  std::vector<int64_t> picks(static_cast<size_t>(layout.outer * k * layout.inner));
  std::vector<int64_t> sources(picks.size());
  AxisLayout to = layout;
  to.length = k;
  with_computing_type(x.dtype(), [&]<class C>() {
    const Elements<C> in(x);
    std::vector<int64_t> order(static_cast<size_t>(layout.length));
    for (int64_t row = 0; row < layout.rows(); ++row) {
      std::iota(order.begin(), order.end(), int64_t{0});
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        const C x_a = in[layout.at(row, a)];
        const C x_b = in[layout.at(row, b)];
        return largest ? x_a > x_b : x_a < x_b;
      });
      for (int64_t i = 0; i < k; ++i) {
        const auto at = static_cast<size_t>(to.at(row, i));
        picks[at] = order[static_cast<size_t>(i)];
        sources[at] = layout.at(row, picks[at]);
      }
    }
  });
  context.set_output(0, gather_elements(context, {x}, shape, sources));
  context.set_output(1, Tensor::from<int64_t>(shape, picks));
}

}  // namespace

void register_axis(KernelTable& table) {
  add_reference(table, {"Softmax"}, run_softmax);
  add_reference(table, {"LogSoftmax"}, run_log_softmax);
  add_reference(table, {"Hardmax"}, run_hardmax);
  add_reference(table, {"LpNormalization"}, run_lp_normalization);
  add_reference(table, {"CumSum"}, run_cumulative<false>);
  add_reference(table, {"CumProd"}, run_cumulative<true>);
  add_reference(table, {"TopK"}, run_top_k);
}

}  // namespace quern::runtime::reference
