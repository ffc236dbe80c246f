// Sequences and optionals of tensors.
#include "ir/ops/infer_common.h"
#include "ir/ops/register.h"

namespace quern {
namespace {

constexpr auto kSequence = ValueType::Kind::Sequence;

// Elements may differ in their dimensions; only equal shapes are told.
void infer_sequence_construct(InferContext& context) {
  ValueType type = context.input_type(0);
  for (size_t i = 1; i < context.input_count(); ++i) {
    if (!(context.input_type(i) == type)) type.shape = std::nullopt;
  }
  context.set_output(0, ValueType{type.dtype, type.shape, kSequence});
}

void infer_sequence_empty(InferContext& context) {
  const DType dtype = dtype_from_onnx_number(context.node().int_attribute("dtype", 1));
  context.set_output(0, ValueType{dtype, std::nullopt, kSequence});
}

void infer_sequence_change(InferContext& context) {
  ValueType type = context.input_type(0);
  if (context.node().op() == "SequenceInsert") {
    if (type.dtype == DType::Undefined) type.dtype = context.dtype(1);
    if (!(context.shape(1) == type.shape)) type.shape = std::nullopt;
  }
  type.kind = kSequence;
  context.set_output(0, type);
}

void infer_sequence_at(InferContext& context) {
  context.set_output(0, context.dtype(0), context.shape(0));
}

void infer_sequence_length(InferContext& context) {
  context.set_output(0, DType::I64, SymShape{});
}

void infer_split_to_sequence(InferContext& context) {
  ValueType type{context.dtype(0), context.shape(0), kSequence};
  const Node& node = context.node();
  if (type.shape) {
    const auto rank = static_cast<int64_t>(type.shape->size());
    const int64_t axis = normalize_axis(context, node.int_attribute("axis", 0), rank);
    if (!context.has_input(1) && node.int_attribute("keepdims", 1) == 0) {
      type.shape->erase(type.shape->begin() + axis);
    } else if (!context.has_input(1)) {
      (*type.shape)[static_cast<size_t>(axis)] = Dim(1);
    } else {
      type.shape = std::nullopt;
    }
  }
  context.set_output(0, type);
}

void infer_concat_from_sequence(InferContext& context) {
  context.set_output(0, context.dtype(0), std::nullopt);
}

void infer_sequence_map(InferContext& context) {
  const Graph* body = context.node().subgraph("body");
  if (body == nullptr || body->outputs().size() != context.node().outputs().size()) return;
  for (size_t i = 0; i < body->outputs().size(); ++i) {
    ValueType type = body->outputs()[i].value->type();
    if (type.shape) type.shape = unknown_dims(type.shape->size());
    type.kind = kSequence;
    context.set_output(i, type);
  }
}

// A value of an optional type is its content, or nothing: shapes and element types are those of the content.
void infer_optional(InferContext& context) {
  if (!context.has_input(0)) {
    const ValueType* type = context.node().attribute<ValueType>("type");
    if (type != nullptr)
      context.set_output(0, ValueType{type->dtype, type->shape, ValueType::Kind::Optional});
    return;
  }
  ValueType type = context.input_type(0);
  type.kind = ValueType::Kind::Optional;
  context.set_output(0, type);
}

void infer_optional_get(InferContext& context) {
  // Whether an optional holds a tensor or a sequence is not recorded in its type; the file says it of the
  // output.
  if (context.input_type(0).kind == ValueType::Kind::Optional) return;
  context.set_output(0, context.input_type(0));
}

void infer_optional_has(InferContext& context) {
  context.set_output(0, DType::Bool, SymShape{});
}

}  // namespace

void register_sequence_schemas(SchemaTable& table) {
  table.add({.op = "SequenceConstruct",
             .min_inputs = 1,
             .max_inputs = kVariadic,
             .infer = infer_sequence_construct});
  table.add({.op = "SequenceEmpty", .infer = infer_sequence_empty});
  table.add({.op = "SequenceInsert", .min_inputs = 2, .max_inputs = 3, .infer = infer_sequence_change});
  table.add({.op = "SequenceErase", .min_inputs = 1, .max_inputs = 2, .infer = infer_sequence_change});
  table.add({.op = "SequenceAt", .min_inputs = 2, .max_inputs = 2, .infer = infer_sequence_at});
  table.add({.op = "SequenceLength", .min_inputs = 1, .max_inputs = 1, .infer = infer_sequence_length});
  table.add({.op = "SplitToSequence", .min_inputs = 1, .max_inputs = 2, .infer = infer_split_to_sequence});
  table.add({.op = "ConcatFromSequence",
             .min_inputs = 1,
             .max_inputs = 1,
             .required_attributes = {"axis"},
             .infer = infer_concat_from_sequence});
  table.add({.op = "SequenceMap",
             .min_inputs = 1,
             .max_inputs = kVariadic,
             .max_outputs = kVariadic,
             .required_attributes = {"body"},
             .infer = infer_sequence_map});
  table.add({.op = "Optional", .min_inputs = 0, .max_inputs = 1, .infer = infer_optional});
  table.add({.op = "OptionalGetElement", .min_inputs = 1, .max_inputs = 1, .infer = infer_optional_get});
  table.add({.op = "OptionalHasElement", .min_inputs = 0, .max_inputs = 1, .infer = infer_optional_has});
}

}  // namespace quern
