// Matrix products, which operators of several families share.
#pragma once

#include <utility>
#include <vector>

#include "ir/tensor.h"
#include "runtime/kernel_context.h"

namespace quern::runtime::reference {

// out [m, n] = a [m, k] * b [k, n], each sum taken over k in order. A: double for floating C, uint64_t for
// integers.
template <class A, class C>
void multiply(const C* a, const C* b, A* out, int64_t m, int64_t k, int64_t n);

// Shapes of a batched product as numpy.matmul has it.
struct MatMulShapes {
  int64_t m = 0;
  int64_t k = 0;
  int64_t n = 0;
  Shape out;
  std::vector<std::pair<int64_t, int64_t>> pairs;  // which matrix of a meets which of b
};
// Fails, naming the node, where they do not multiply.
MatMulShapes matmul_shapes(const KernelContext& context, Shape a, Shape b);

// a * b as numpy.matmul has it; the sums are rounded, or wrapped, to `dtype` once.
Tensor matmul(const KernelContext& context, const Tensor& a, const Tensor& b, DType dtype);

// Of rank 2.
Tensor transposed_matrix(const KernelContext& context, const Tensor& x);

}  // namespace quern::runtime::reference
