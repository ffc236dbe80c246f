// Rows to integers by ranges that are not each block's own.
#pragma once

#include "runtime/cpu/activations.h"
#include "runtime/cpu/linear_kernels.h"

namespace quern::cpu {

// Rows first .. first + count - 1 of an integer format. Quotients are divided, not multiplied by reciprocals,
// and halves go to even: the codes are those of QuantizeLinear. A value that is not finite makes the row's
// scales NaN; with a Fixed range infinities are clamped and NaN alone shows.
void encode_ranged(const ActivationRange& range, const EncodeTask& task, int64_t first, int64_t count);

}  // namespace quern::cpu
