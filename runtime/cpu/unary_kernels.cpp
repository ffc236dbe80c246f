#include "runtime/cpu/simd_math.h"
#include "runtime/cpu/unary.h"
#include "runtime/cpu/unary_inline.h"

namespace quern::cpu::QUERN_ISA {
namespace {

template <Unary kFunction>
void apply_one(const float* x, float* y, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, unary<kFunction>(load(x + i)));
  if (i < count) {
    const int rest = static_cast<int>(count - i);
    store_partial(y + i, unary<kFunction>(load_partial(x + i, rest)), rest);
  }
}

void apply(Unary function, const float* x, float* y, int64_t count) {
  switch (function) {
    case Unary::Identity:
      if (x != y) std::memcpy(y, x, static_cast<size_t>(count) * sizeof(float));
      return;
    case Unary::Relu:
      return apply_one<Unary::Relu>(x, y, count);
    case Unary::Silu:
      return apply_one<Unary::Silu>(x, y, count);
    case Unary::Gelu:
      return apply_one<Unary::Gelu>(x, y, count);
    case Unary::GeluTanh:
      return apply_one<Unary::GeluTanh>(x, y, count);
    case Unary::GeluQuick:
      return apply_one<Unary::GeluQuick>(x, y, count);
    case Unary::Sigmoid:
      return apply_one<Unary::Sigmoid>(x, y, count);
    case Unary::Tanh:
      return apply_one<Unary::Tanh>(x, y, count);
    case Unary::Erf:
      return apply_one<Unary::Erf>(x, y, count);
    case Unary::Exp:
      return apply_one<Unary::Exp>(x, y, count);
  }
}

}  // namespace

extern const UnaryKernels unary_kernels;
const UnaryKernels unary_kernels = {apply};

}  // namespace quern::cpu::QUERN_ISA
