#include "ir/ops/infer_common.h"

namespace quern {

void infer_same_as_input(InferContext& context) {
  context.set_output(0, context.input_type(0));
}

void infer_broadcast(InferContext& context) {
  std::optional<SymShape> shape = context.shape(0);
  for (size_t i = 1; i < context.input_count() && shape; ++i) {
    if (!context.has_input(i)) continue;
    if (!context.shape(i)) {
      shape = std::nullopt;
      break;
    }
    const std::optional<SymShape> joined = broadcast(*shape, *context.shape(i));
    if (!joined) {
      context.fail(
          concat("shapes ", to_string(*shape), " and ", to_string(*context.shape(i)), " do not broadcast"));
    }
    shape = joined;
  }
  context.set_output(0, context.dtype(0), shape);
}

int64_t normalize_axis(const InferContext& context, int64_t axis, int64_t rank) {
  if (axis < -rank || axis >= rank)
    context.fail(concat("axis ", axis, " is outside a tensor of rank ", rank));
  return axis < 0 ? axis + rank : axis;
}

}  // namespace quern
