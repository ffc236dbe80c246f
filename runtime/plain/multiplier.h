// Products of f32 matrices by oneDNN's matmul.
#pragma once

#include <cstdint>

namespace quern::runtime::plain {

// out = alpha * a * b + bias + beta * out
struct Product {
  int64_t batch = 1;
  int64_t m = 0, k = 0, n = 0;
  // Of a as [batch, m, k] and b as [batch, k, n]; the innermost matrices may be transposed.
  bool transpose_a = false, transpose_b = false;
  float alpha = 1;
  float beta = 0;     // of what the output holds before
  bool bias = false;  // [n], added to each row; with batch = 1 alone
};

// Throws dnnl::error; see with_onednn(). What oneDNN prepares for a shape is kept, per thread.
void multiply(const Product& product, const float* a, const float* b, float* out,
              const float* bias = nullptr);

}  // namespace quern::runtime::plain
