// exp, tanh, erf and the activations made of them, for 16 lanes (simd.h). One implementation for whole
// vectors and for tails, so that a value's result does not depend on where in a row it lies.
#pragma once

#include "runtime/cpu/simd.h"

namespace quern::cpu::QUERN_ISA {

// a * b - c and c - a * b by way of fmadd.
QUERN_INLINE F32 fnmadd(F32 a, F32 b, F32 c) {
  return fmadd(neg(a), b, c);
}

// e^x within 2 units in the last place (the polynomial of Cephes' expf); 0 below -103.97, where the result
// leaves the subnormal range; infinity above 88.72; NaN for NaN.
QUERN_INLINE F32 exp(F32 x) {
  const F32 low = set1(-104.0F);
  const F32 high = set1(88.8F);
  // The operand order lets a NaN through: min and max give their second operand where one is NaN.
  const F32 clamped = min(high, max(low, x));
  const I32 n = round_i32(mul(clamped, set1(1.44269504088896341F)));
  const F32 nf = to_f32(n);
  F32 r = fnmadd(nf, set1(0.693359375F), clamped);
  r = fnmadd(nf, set1(-2.12194440e-4F), r);
  F32 p = set1(1.9875691500e-4F);
  p = fmadd(p, r, set1(1.3981999507e-3F));
  p = fmadd(p, r, set1(8.3334519073e-3F));
  p = fmadd(p, r, set1(4.1665795894e-2F));
  p = fmadd(p, r, set1(1.6666665459e-1F));
  p = fmadd(p, r, set1(5.0000001201e-1F));
  p = add(fmadd(p, mul(r, r), r), set1(1.0F));
  // 2^n in two factors, for n from -150 to 128 is more than one exponent field holds.
  const I32 half = shift_right<1>(n);
  const I32 rest = sub_i(n, half);
  const F32 a = from_bits(shift_left<23>(add_i(half, set1_i(127))));
  const F32 b = from_bits(shift_left<23>(add_i(rest, set1_i(127))));
  return mul(mul(p, a), b);
}

// tanh x (Cephes' tanhf): a polynomial near 0, else by exp.
QUERN_INLINE F32 tanh(F32 x) {
  const F32 magnitude = abs(x);
  const F32 z = mul(x, x);
  F32 p = set1(-5.70498872745e-3F);
  p = fmadd(p, z, set1(2.06390887954e-2F));
  p = fmadd(p, z, set1(-5.37397155531e-2F));
  p = fmadd(p, z, set1(1.33314422036e-1F));
  p = fmadd(p, z, set1(-3.33332819422e-1F));
  const F32 near = fmadd(mul(p, z), x, x);
  const F32 e = exp(add(magnitude, magnitude));
  const F32 far = sub(set1(1.0F), div(set1(2.0F), add(e, set1(1.0F))));
  const I32 sign = and_i(bits(x), set1_i(INT32_MIN));
  return select_less(magnitude, set1(0.625F), near, from_bits(or_i(bits(far), sign)));
}

// erf x within 1e-6: a rational approximation on [-4, 4], +-1 beyond.
QUERN_INLINE F32 erf(F32 x) {
  const F32 c = max(set1(-4.0F), min(set1(4.0F), x));
  const F32 z = mul(c, c);
  F32 p = set1(-2.72614225801306e-10F);
  p = fmadd(p, z, set1(2.77068142495902e-08F));
  p = fmadd(p, z, set1(-2.10102402082508e-06F));
  p = fmadd(p, z, set1(-5.69250639462346e-05F));
  p = fmadd(p, z, set1(-7.34990630326855e-04F));
  p = fmadd(p, z, set1(-2.95459980854025e-03F));
  p = fmadd(p, z, set1(-1.60960333262415e-02F));
  F32 q = set1(-1.45660718464996e-05F);
  q = fmadd(q, z, set1(-2.13374055278905e-04F));
  q = fmadd(q, z, set1(-1.68282697438203e-03F));
  q = fmadd(q, z, set1(-7.37332916720468e-03F));
  q = fmadd(q, z, set1(-1.42647390514189e-02F));
  return div(mul(c, p), q);
}

QUERN_INLINE F32 sigmoid(F32 x) {
  return div(set1(1.0F), add(set1(1.0F), exp(neg(x))));
}
QUERN_INLINE F32 silu(F32 x) {
  return div(x, add(set1(1.0F), exp(neg(x))));
}
// x * sigmoid(1.702 x)
QUERN_INLINE F32 gelu_quick(F32 x) {
  return div(x, add(set1(1.0F), exp(mul(x, set1(-1.702F)))));
}
// 0.5 x (1 + erf(x / sqrt 2))
QUERN_INLINE F32 gelu(F32 x) {
  const F32 half = mul(x, set1(0.5F));
  return fmadd(half, erf(mul(x, set1(0.70710678118654752F))), half);
}
// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
QUERN_INLINE F32 gelu_tanh(F32 x) {
  const F32 cube = mul(mul(x, x), x);
  const F32 inner = mul(set1(0.79788456080286536F), fmadd(set1(0.044715F), cube, x));
  const F32 half = mul(x, set1(0.5F));
  return fmadd(half, tanh(inner), half);
}

}  // namespace quern::cpu::QUERN_ISA
