// Einsum and Det.
#include "ir/ops/einsum.h"

#include <cmath>

#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

// The sum over all labels that the output lacks of the products of the inputs.
void run_einsum(KernelContext& context) {
  const std::string equation = context.node().string_attribute("equation", "");
  std::vector<int64_t> ranks;
  for (size_t i = 0; i < context.input_count(); ++i) ranks.push_back(context.input(i).rank());
  const std::optional<EinsumEquation> parsed = parse_einsum(equation, ranks);
  if (!parsed) context.fail("the equation '", equation, "' does not fit the inputs");
  const auto labels = static_cast<size_t>(parsed->labels);
  Shape sizes(labels, 1);
  for (size_t i = 0; i < ranks.size(); ++i) {
    check_same_dtype(context, context.input(0), context.input(i));
    for (size_t k = 0; k < parsed->inputs[i].size(); ++k) {
      int64_t& size = sizes[static_cast<size_t>(parsed->inputs[i][k])];
      const int64_t dim = context.input(i).shape()[k];
      if (dim != size && dim != 1 && size != 1)
        context.fail("dimensions ", size, " and ", dim, " of one label");
      if (size == 1) size = dim;
    }
  }
  // Output labels first, then those that are summed over.
  std::vector<int> order = parsed->output;
  for (int label = 0; label < parsed->labels; ++label) {
    if (std::find(parsed->output.begin(), parsed->output.end(), label) == parsed->output.end())
      order.push_back(label);
  }
  Shape shape, out_shape;
  for (size_t i = 0; i < order.size(); ++i) {
    shape.push_back(sizes[static_cast<size_t>(order[i])]);
    if (i < parsed->output.size()) out_shape.push_back(shape.back());
  }
  // Where one step along a label leads in each input; a label that occurs twice takes the diagonal.
  std::vector<Shape> strides;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const Shape own = strides_of(context.input(i).shape());
    Shape by_label(labels, 0);
    for (size_t k = 0; k < own.size(); ++k) {
      if (context.input(i).shape()[k] != 1) by_label[static_cast<size_t>(parsed->inputs[i][k])] += own[k];
    }
    strides.emplace_back();
    for (const int label : order) strides.back().push_back(by_label[static_cast<size_t>(label)]);
  }
  const DType dtype = context.input(0).dtype();
  const int64_t total = element_count(shape);
  // Small inputs without a common label can ask for more than a lifetime of products.
  constexpr int64_t kMostProducts = int64_t{1} << 40;
  if (total > kMostProducts) context.unsupported("it takes ", total, " products");
  const int64_t results = context.checked_count(DType::F64, out_shape);
  const int64_t per_result = results == 0 ? 0 : total / results;
  with_computing_type(dtype, [&]<class C>() {
    using A = std::conditional_t<std::is_floating_point_v<C>, double, uint64_t>;
    std::vector<Elements<C>> data;
    for (size_t i = 0; i < ranks.size(); ++i) data.emplace_back(context.input(i));
    std::vector<A> out = make_buffer<A>(context, out_shape);
    Shape index(shape.size(), 0);
    for (int64_t at = 0; at < total; ++at) {
      A product = 1;
      for (size_t i = 0; i < data.size(); ++i) {
        int64_t offset = 0;
        for (size_t axis = 0; axis < index.size(); ++axis) offset += index[axis] * strides[i][axis];
        product *= static_cast<A>(data[i][offset]);
      }
      out[static_cast<size_t>(at / per_result)] += product;
      for (size_t axis = index.size(); axis-- > 0;) {
        if (++index[axis] < shape[axis]) break;
        index[axis] = 0;
      }
    }
    context.set_output(0, to_tensor(dtype, out_shape, out));
  });
}

// By elimination with partial pivoting.
double determinant(std::vector<double> m, int64_t n) {
  double result = 1;
  for (int64_t column = 0; column < n; ++column) {
    int64_t pivot = column;
    for (int64_t row = column + 1; row < n; ++row) {
      if (std::fabs(m[static_cast<size_t>(row * n + column)]) >
          std::fabs(m[static_cast<size_t>(pivot * n + column)])) {
        pivot = row;
      }
    }
    const double diagonal = m[static_cast<size_t>(pivot * n + column)];
    if (diagonal == 0) return 0;
    if (pivot != column) {
      for (int64_t i = 0; i < n; ++i) {
        std::swap(m[static_cast<size_t>(pivot * n + i)], m[static_cast<size_t>(column * n + i)]);
      }
      result = -result;
    }
    result *= diagonal;
    for (int64_t row = column + 1; row < n; ++row) {
      const double factor = m[static_cast<size_t>(row * n + column)] / diagonal;
      for (int64_t i = column; i < n; ++i) {
        m[static_cast<size_t>(row * n + i)] -= factor * m[static_cast<size_t>(column * n + i)];
      }
    }
  }
  return result;
}

void run_det(KernelContext& context) {
  const Tensor& x = context.input(0);
  if (x.rank() < 2 || x.dim(-1) != x.dim(-2)) context.fail("the input has the shape ", to_string(x.shape()));
  const int64_t n = x.dim(-1);
  const Shape shape(x.shape().begin(), x.shape().end() - 2);
  const Elements<double> in(x);
  std::vector<double> out = make_buffer<double>(context, shape);
  for (size_t i = 0; i < out.size(); ++i) {
    const double* matrix = in.data() + static_cast<int64_t>(i) * n * n;
    out[i] = determinant(std::vector<double>(matrix, matrix + n * n), n);
  }
  context.set_output(0, to_tensor(x.dtype(), shape, out));
}

}  // namespace

void register_einsum(KernelTable& table) {
  add_reference(table, {"Einsum"}, run_einsum);
  add_reference(table, {"Det"}, run_det);
}

}  // namespace quern::runtime::reference
