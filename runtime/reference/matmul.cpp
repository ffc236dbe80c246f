// Matrix products, summed in double (integers: exactly, modulo 2^64).
#include <algorithm>

#include "runtime/reference/matmul.h"
#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {

template <class A, class C>
void multiply(const C* a, const C* b, A* out, int64_t m, int64_t k, int64_t n) {
  std::fill(out, out + m * n, A{0});
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t l = 0; l < k; ++l) {
      const auto x = static_cast<A>(a[i * k + l]);
      const C* row = b + l * n;
      A* sums = out + i * n;
      for (int64_t j = 0; j < n; ++j) sums[j] += x * static_cast<A>(row[j]);
    }
  }
}

template void multiply(const float*, const float*, double*, int64_t, int64_t, int64_t);
template void multiply(const double*, const double*, double*, int64_t, int64_t, int64_t);
template void multiply(const int64_t*, const int64_t*, uint64_t*, int64_t, int64_t, int64_t);
template void multiply(const uint64_t*, const uint64_t*, uint64_t*, int64_t, int64_t, int64_t);

MatMulShapes matmul_shapes(const KernelContext& context, Shape a, Shape b) {
  if (a.empty() || b.empty()) context.fail("an input is a scalar");
  const bool vector_a = a.size() == 1;
  const bool vector_b = b.size() == 1;
  if (vector_a) a.insert(a.begin(), 1);
  if (vector_b) b.push_back(1);
  MatMulShapes s;
  s.m = a[a.size() - 2];
  s.k = a.back();
  s.n = b.back();
  if (b[b.size() - 2] != s.k) {
    context.fail("shapes ", to_string(a), " and ", to_string(b), " do not multiply");
  }
  const Shape batch_a(a.begin(), a.end() - 2);
  const Shape batch_b(b.begin(), b.end() - 2);
  const Shape batch = broadcast_shapes(batch_a, batch_b);
  for_each_offset<2>(batch, {broadcast_strides(batch_a, batch), broadcast_strides(batch_b, batch)},
                     [&](int64_t oa, int64_t ob) { s.pairs.emplace_back(oa, ob); });
  s.out = batch;
  if (!vector_a) s.out.push_back(s.m);
  if (!vector_b) s.out.push_back(s.n);
  return s;
}

Tensor matmul(const KernelContext& context, const Tensor& a, const Tensor& b, DType dtype) {
  const MatMulShapes s = matmul_shapes(context, a.shape(), b.shape());
  context.checked_count(DType::F64, s.out);
  return with_computing_type(a.dtype(), [&]<class C>() {
    using A = std::conditional_t<std::is_floating_point_v<C>, double, uint64_t>;
    const Elements<C> x(a);
    const Elements<C> y(b);
    std::vector<A> out = make_buffer<A>(context, s.out);
    for (size_t i = 0; i < s.pairs.size(); ++i) {
      multiply(x.data() + s.pairs[i].first * s.m * s.k, y.data() + s.pairs[i].second * s.k * s.n,
               out.data() + static_cast<int64_t>(i) * s.m * s.n, s.m, s.k, s.n);
    }
    return to_tensor(dtype, s.out, out);
  });
}

Tensor transposed_matrix(const KernelContext& context, const Tensor& x) {
  return strided_copy(context, x, {x.dim(1), x.dim(0)}, {1, x.dim(1)});
}

namespace {

void run_matmul(KernelContext& context) {
  const Tensor& a = context.input(0);
  const Tensor& b = context.input(1);
  check_same_dtype(context, a, b);
  context.set_output(0, matmul(context, a, b, a.dtype()));
}

// alpha * A' * B' + beta * C
void run_gemm(KernelContext& context) {
  const Node& node = context.node();
  Tensor a = context.input(0);
  Tensor b = context.input(1);
  check_same_dtype(context, a, b);
  if (a.rank() != 2 || b.rank() != 2) context.fail("the matrices must have rank 2");
  if (node.int_attribute("transA", 0) != 0) a = transposed_matrix(context, a);
  if (node.int_attribute("transB", 0) != 0) b = transposed_matrix(context, b);
  const double alpha = node.float_attribute("alpha", 1.0F);
  const double beta = node.float_attribute("beta", 1.0F);
  const DType wide = is_floating(a.dtype()) ? DType::F64 : DType::I64;
  const Tensor product = matmul(context, a, b, wide);
  std::vector<double> out(static_cast<size_t>(product.size()));
  for (int64_t i = 0; i < product.size(); ++i) out[static_cast<size_t>(i)] = alpha * product.at(i);
  if (context.has_input(2)) {
    const Tensor& c = context.input(2);
    if (broadcast_shapes(c.shape(), product.shape()) != product.shape()) {
      context.fail("C of shape ", to_string(c.shape()), " does not broadcast to ",
                   to_string(product.shape()));
    }
    const Elements<double> addend(c);
    size_t i = 0;
    for_each_offset<1>(product.shape(), {broadcast_strides(c.shape(), product.shape())},
                       [&](int64_t offset) { out[i++] += beta * addend[offset]; });
  }
  context.set_output(0, to_tensor(a.dtype(), product.shape(), out));
}

}  // namespace

void register_matmul(KernelTable& table) {
  add_reference(table, {"MatMul"}, run_matmul);
  add_reference(table, {"Gemm"}, run_gemm, 6);
}

}  // namespace quern::runtime::reference
