// The Unary functions on 16 lanes, for kernel files.
#pragma once

#include "runtime/cpu/simd_math.h"
#include "runtime/cpu/unary.h"

namespace quern::cpu::QUERN_ISA {

template <Unary kFunction>
QUERN_INLINE F32 unary(F32 x) {
  switch (kFunction) {
    case Unary::Identity:
      return x;
    case Unary::Relu:
      // The operand order lets a NaN through.
      return max(zero_f(), x);
    case Unary::Silu:
      return silu(x);
    case Unary::Gelu:
      return gelu(x);
    case Unary::GeluTanh:
      return gelu_tanh(x);
    case Unary::GeluQuick:
      return gelu_quick(x);
    case Unary::Sigmoid:
      return sigmoid(x);
    case Unary::Tanh:
      return tanh(x);
    case Unary::Erf:
      return erf(x);
    case Unary::Exp:
      return exp(x);
  }
  return x;
}

QUERN_INLINE F32 unary(Unary function, F32 x) {
  switch (function) {
    case Unary::Identity:
      return x;
    case Unary::Relu:
      return unary<Unary::Relu>(x);
    case Unary::Silu:
      return unary<Unary::Silu>(x);
    case Unary::Gelu:
      return unary<Unary::Gelu>(x);
    case Unary::GeluTanh:
      return unary<Unary::GeluTanh>(x);
    case Unary::GeluQuick:
      return unary<Unary::GeluQuick>(x);
    case Unary::Sigmoid:
      return unary<Unary::Sigmoid>(x);
    case Unary::Tanh:
      return unary<Unary::Tanh>(x);
    case Unary::Erf:
      return unary<Unary::Erf>(x);
    case Unary::Exp:
      return unary<Unary::Exp>(x);
  }
  return x;
}

}  // namespace quern::cpu::QUERN_ISA
