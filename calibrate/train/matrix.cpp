#include "calibrate/train/matrix.h"

#include <dnnl.h>

#include <algorithm>

#include "ir/error.h"

namespace quern::calibrate::train {
namespace {

void product(char a_as, char b_as, int64_t m, int64_t n, int64_t k, const float* a, int64_t a_stride,
             const float* b, int64_t b_stride, float* c, Into into) {
  const dnnl_status_t status =
      dnnl_sgemm(a_as, b_as, m, n, k, 1.0f, a, a_stride, b, b_stride, into == Into::Add ? 1.0f : 0.0f, c, n);
  if (status == dnnl_out_of_memory) throw_error(ErrorCode::OutOfMemory, "no memory left for a product");
  if (status != dnnl_success)
    throw_error(ErrorCode::Internal, "oneDNN refuses a product of ", m, " x ", k, " and ", k, " x ", n);
}

// Below so many multiply-adds, waking threads takes longer than the product.
constexpr int64_t kSmall = int64_t{1} << 20;

// The same for small matrices: element (i, j) of a at a[i * a_row + j * a_col], and so on.
void small_product(const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t b_row, int64_t b_col,
                   float* c, int64_t m, int64_t n, int64_t k, Into into) {
  for (int64_t i = 0; i < m; ++i) {
    float* row = c + i * n;
    if (into == Into::Set) std::fill_n(row, n, 0.0f);
    for (int64_t p = 0; p < k; ++p) {
      const float factor = a[i * a_row + p * a_col];
      for (int64_t j = 0; j < n; ++j) row[j] += factor * b[p * b_row + j * b_col];
    }
  }
}

}  // namespace

void multiply_transposed(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k,
                         Into into) {
  if (m * n * k <= kSmall) return small_product(a, k, 1, b, 1, k, c, m, n, k, into);
  product('N', 'T', m, n, k, a, k, b, k, c, into);
}

void multiply(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k, Into into) {
  if (m * n * k <= kSmall) return small_product(a, k, 1, b, n, 1, c, m, n, k, into);
  product('N', 'N', m, n, k, a, k, b, n, c, into);
}

void transposed_multiply(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k,
                         Into into) {
  if (m * n * k <= kSmall) return small_product(a, 1, m, b, n, 1, c, m, n, k, into);
  product('T', 'N', m, n, k, a, m, b, n, c, into);
}

}  // namespace quern::calibrate::train
