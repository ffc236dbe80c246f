// Normalizations of ai.onnx.
#include "ir/ops/infer_common.h"
#include "ir/ops/register.h"

namespace quern {
namespace {

void infer_batch_normalization(InferContext& context) {
  infer_same_as_input(context);
  for (size_t i = 1; i < context.node().outputs().size(); ++i) {
    context.set_output(i, context.dtype(3), context.shape(3));
  }
}

// Y, and of each normalised row the mean and the inverse standard deviation, in the stash type.
void infer_layer_normalization(InferContext& context) {
  infer_same_as_input(context);
  const Node& node = context.node();
  std::optional<SymShape> shape = context.shape(0);
  if (shape) {
    const auto rank = static_cast<int64_t>(shape->size());
    const int64_t axis = normalize_axis(context, node.int_attribute("axis", -1), rank);
    for (int64_t i = axis; i < rank; ++i) (*shape)[static_cast<size_t>(i)] = Dim(1);
  }
  const DType stash = dtype_from_onnx_number(node.int_attribute("stash_type", 1));
  for (size_t i = 1; i < node.outputs().size(); ++i) context.set_output(i, stash, shape);
}

}  // namespace

void register_normalization_schemas(SchemaTable& table) {
  table.add({.op = "BatchNormalization",
             .since = 6,
             .min_inputs = 5,
             .max_inputs = 5,
             .max_outputs = 5,
             .infer = infer_batch_normalization});
  for (const char* op : {"InstanceNormalization", "GroupNormalization"}) {
    table.add({.op = op, .min_inputs = 3, .max_inputs = 3, .infer = infer_same_as_input});
  }
  table.add({.op = "LayerNormalization",
             .min_inputs = 2,
             .max_inputs = 3,
             .max_outputs = 3,
             .infer = infer_layer_normalization});
  table.add({.op = "RMSNormalization", .min_inputs = 2, .max_inputs = 2, .infer = infer_same_as_input});
  // Not of the specification: ONNX Runtime's optimizer and exporters put it into ai.onnx.
  table.add({.op = "SimplifiedLayerNormalization",
             .min_inputs = 2,
             .max_inputs = 2,
             .max_outputs = 2,
             .infer = infer_layer_normalization});
  table.add({.op = "LRN",
             .min_inputs = 1,
             .max_inputs = 1,
             .required_attributes = {"size"},
             .infer = infer_same_as_input});
  table.add(
      {.op = "MeanVarianceNormalization", .min_inputs = 1, .max_inputs = 1, .infer = infer_same_as_input});
}

}  // namespace quern
