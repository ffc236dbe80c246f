#include "ir/ops/infer_common.h"
#include "ir/ops/register.h"

namespace quern {
namespace {

void infer_shape_op(InferContext& context) {
  if (!context.shape(0)) {
    context.set_output(0, DType::I64, SymShape{Dim::fresh()});
    return;
  }
  const SymShape& shape = *context.shape(0);
  const auto rank = static_cast<int64_t>(shape.size());
  const auto clamp = [&](int64_t i) { return std::min(std::max(i < 0 ? i + rank : i, int64_t{0}), rank); };
  const int64_t begin = clamp(context.node().int_attribute("start", 0));
  const int64_t end = std::max(begin, clamp(context.node().int_attribute("end", rank)));
  std::vector<Dim> elements(shape.begin() + begin, shape.begin() + end);
  context.set_output(0, DType::I64, SymShape{Dim(end - begin)});
  context.set_elements(0, std::move(elements));
}

}  // namespace

void register_movement_schemas(SchemaTable& table) {
  table.add({.op = "Shape", .min_inputs = 1, .max_inputs = 1, .infer = infer_shape_op});
}

}  // namespace quern
