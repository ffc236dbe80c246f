// How keys and values become integers in the cache (attention.h).
//
// Every token's key (value) of a KV head has a scale of its own, which depends on that key alone. Keys are
// divided by fixed scales of their channels first (AttentionShape::key_scales), so that channels whose keys
// are large in every token, as there are in most models, do not take the codes away from the others. Scales
// of channels computed over a block of tokens (KIVI, Liu et al. 2024) would do a little better, but what a
// token sees would then depend on tokens after it, and on how a sequence came to its length.
//
//   8 bits  scale = max|x| / 127, codes -127 .. 127
//   4 bits  codes -8 .. 7; the scale, of either sign, is that of kCodeRanges with the least squared error,
//           then the best for its codes
//   code = round(x / scale), halves to even; values of 0 alone have the scale 0; a value that is not finite
//   makes the scale NaN
#pragma once

namespace quern::cpu {

// x of the largest magnitude stands at these codes, before clamping: beyond the last code where cutting it
// off leaves finer steps to the others.
inline constexpr float kCodeRanges[] = {-8.0F, -8.75F, -9.5F, -10.5F, 7.0F, 7.75F, 8.5F, 9.5F};

}  // namespace quern::cpu
