// Unary functions of rows of floats: what the epilogues of products compute, by itself.
#pragma once

#include <cstdint>

#include "runtime/cpu/isa.h"

namespace quern::cpu {

enum class Unary : uint8_t {
  Identity,
  Relu,
  Silu,       // x sigmoid(x)
  Gelu,       // 0.5 x (1 + erf(x / sqrt 2))
  GeluTanh,   // 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
  GeluQuick,  // x sigmoid(1.702 x)
  Sigmoid,
  Tanh,
  Erf,
  Exp,
};

// y[i] = function(x[i]) for i < count; x and y may be the same. Each element's result depends on it alone.
void apply_unary(Unary function, const float* x, float* y, int64_t count, Isa isa = active_isa());

struct UnaryKernels {
  void (*apply)(Unary function, const float* x, float* y, int64_t count);
};

}  // namespace quern::cpu
