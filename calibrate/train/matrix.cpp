#include "calibrate/train/matrix.h"

#include <dnnl.h>

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

}  // namespace

void multiply_transposed(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k,
                         Into into) {
  product('N', 'T', m, n, k, a, k, b, k, c, into);
}

void multiply(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k, Into into) {
  product('N', 'N', m, n, k, a, k, b, n, c, into);
}

void transposed_multiply(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k,
                         Into into) {
  product('T', 'N', m, n, k, a, m, b, n, c, into);
}

}  // namespace quern::calibrate::train
