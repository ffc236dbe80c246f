// Shape functions that many operators share.
#pragma once

#include "ir/shape_inference.h"

namespace quern {

// Output 0 has the type of input 0.
void infer_same_as_input(InferContext& context);
// Output 0: the broadcast of all inputs' shapes, the dtype of input 0; integer elements are not tracked.
void infer_broadcast(InferContext& context);
// A negative axis counts from the end. Fails, naming node and axis, outside [-rank, rank).
int64_t normalize_axis(const InferContext& context, int64_t axis, int64_t rank);

}  // namespace quern
