// Dense products of f32 matrices, row by row, on all processors.
#pragma once

#include <cstdint>

namespace quern::calibrate::train {

enum class Into : uint8_t { Set, Add };

// c [m, n] = a [m, k] * b [n, k]^T
void multiply_transposed(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k,
                         Into into);
// c [m, n] = a [m, k] * b [k, n]
void multiply(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k, Into into);
// c [m, n] = a [k, m]^T * b [k, n]
void transposed_multiply(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k,
                         Into into);

}  // namespace quern::calibrate::train
