// Scalar functions that several operators share.
#pragma once

#include <algorithm>
#include <cmath>

namespace quern::runtime::reference {

// Written so that exp never overflows to infinity over infinity.
template <class C>
C sigmoid(C x) {
  if (x >= 0) return C{1} / (C{1} + std::exp(-x));
  const C e = std::exp(x);
  return e / (C{1} + e);
}

// log(1 + exp(x)) without overflow.
template <class C>
C softplus(C x) {
  return std::max(x, C{0}) + std::log1p(std::exp(-std::fabs(x)));
}

// x * Phi(x), the exact form (Hendrycks and Gimpel, arXiv 1606.08415).
template <class C>
C gelu(C x) {
  return C{0.5} * x * (C{1} + std::erf(x * static_cast<C>(0.70710678118654752440)));
}

// The tanh approximation of the same paper.
template <class C>
C gelu_tanh(C x) {
  constexpr C kSqrt2OverPi = static_cast<C>(0.79788456080286535588);
  return C{0.5} * x * (C{1} + std::tanh(kSqrt2OverPi * (x + static_cast<C>(0.044715) * x * x * x)));
}

}  // namespace quern::runtime::reference
