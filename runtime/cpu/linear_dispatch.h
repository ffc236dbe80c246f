// The kernels of products, by instruction set.
#pragma once

#include "runtime/cpu/isa.h"
#include "runtime/cpu/linear.h"
#include "runtime/cpu/linear_kernels.h"

namespace quern::cpu {

const LinearKernels& linear_kernels(Isa isa);

// The slow and obvious version: double-precision sums of dequantized weights and F32 inputs.
void linear_reference(const LinearOp& op, const TileRange& range);

}  // namespace quern::cpu
