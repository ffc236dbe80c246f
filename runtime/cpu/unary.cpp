#include "runtime/cpu/unary.h"

#include "runtime/cpu/dispatch.h"

namespace quern::cpu {

QUERN_DECLARE_KERNELS(UnaryKernels, unary_kernels)

void apply_unary(Unary function, const float* x, float* y, int64_t count, Isa isa) {
  unary_kernels(isa).apply(function, x, y, count);
}

}  // namespace quern::cpu
