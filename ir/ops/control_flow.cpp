// If, Loop and Scan. Sub-graphs are inferred before the nodes that hold them.
#include <algorithm>

#include "ir/ops/infer_common.h"
#include "ir/ops/register.h"

namespace quern {
namespace {

// What is known of a value that is one or the other. Sequences and optionals included.
ValueType either(const ValueType& a, const ValueType& b) {
  if (a.kind != b.kind) return {};
  ValueType joined{a.dtype == b.dtype ? a.dtype : DType::Undefined, std::nullopt, a.kind};
  if (a.shape && b.shape && a.shape->size() == b.shape->size()) {
    joined.shape = a.shape;
    for (size_t i = 0; i < a.shape->size(); ++i) {
      if (!((*a.shape)[i] == (*b.shape)[i])) (*joined.shape)[i] = Dim::fresh();
    }
  }
  return joined;
}

void infer_if(InferContext& context) {
  const Graph* yes = context.node().subgraph("then_branch");
  const Graph* no = context.node().subgraph("else_branch");
  if (yes == nullptr || no == nullptr) return;
  const size_t count = context.node().outputs().size();
  if (yes->outputs().size() != count || no->outputs().size() != count) {
    context.fail(concat("the branches have ", yes->outputs().size(), " and ", no->outputs().size(),
                        " outputs, the node has ", count));
  }
  const auto condition = context.constant_ints(0);
  for (size_t i = 0; i < count; ++i) {
    const ValueType& a = yes->outputs()[i].value->type();
    const ValueType& b = no->outputs()[i].value->type();
    if (condition && condition->size() == 1) {
      context.set_output(i, condition->front() != 0 ? a : b);
    } else {
      context.set_output(i, either(a, b));
    }
  }
}

// Inputs: trip count, condition, loop-carried values. Body outputs: condition, loop-carried values, scan
// outputs.
void infer_loop(InferContext& context) {
  const Graph* body = context.node().subgraph("body");
  if (body == nullptr) return;
  const size_t carried = context.input_count() > 2 ? context.input_count() - 2 : 0;
  const size_t outputs = context.node().outputs().size();
  if (body->outputs().size() != outputs + 1 || outputs < carried) {
    context.fail(concat("the body has ", body->outputs().size(), " outputs for ", carried,
                        " carried values and ", outputs, " outputs"));
  }
  for (size_t i = 0; i < outputs; ++i) {
    ValueType type = body->outputs()[i + 1].value->type();
    if (i < carried) {
      // The value may keep its initial shape, or take the body's, or change from step to step.
      context.set_output(i,
                         ValueType{either(context.input_type(i + 2), type).dtype, std::nullopt, type.kind});
      continue;
    }
    if (type.shape) type.shape->insert(type.shape->begin(), Dim::fresh());
    context.set_output(i, std::move(type));
  }
}

// From version 9 on; version 8 had a batch dimension and sequence lengths.
void infer_scan(InferContext& context) {
  const Node& node = context.node();
  const Graph* body = node.subgraph("body");
  if (body == nullptr) return;
  const bool batched = node.opset() < 9;
  const auto scanned = static_cast<size_t>(std::max<int64_t>(0, node.int_attribute("num_scan_inputs", 0)));
  const size_t first = batched ? 1 : 0;
  if (context.input_count() < first + scanned) context.fail("num_scan_inputs exceeds the inputs");
  const size_t states = context.input_count() - first - scanned;
  if (body->outputs().size() != node.outputs().size()) {
    context.fail(
        concat("the body has ", body->outputs().size(), " outputs, the node ", node.outputs().size()));
  }
  const std::vector<int64_t> in_axes = node.ints_attribute("scan_input_axes", {});
  const std::vector<int64_t> out_axes = node.ints_attribute("scan_output_axes", {});
  Dim steps = Dim::fresh();
  if (scanned > 0 && !batched && context.shape(first + states)) {
    const SymShape& shape = *context.shape(first + states);
    const int64_t axis = in_axes.empty() ? 0 : in_axes[0];
    steps = shape[static_cast<size_t>(normalize_axis(context, axis, static_cast<int64_t>(shape.size())))];
  }
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    ValueType type = body->outputs()[i].value->type();
    if (batched) {
      type.shape = std::nullopt;
    } else if (i < states) {
      type = ValueType{type.dtype, std::nullopt, type.kind};
      type.shape = either(context.input_type(first + i), body->outputs()[i].value->type()).shape;
    } else if (type.shape) {
      const auto rank = static_cast<int64_t>(type.shape->size()) + 1;
      const int64_t axis = i - states < out_axes.size() ? out_axes[i - states] : 0;
      type.shape->insert(type.shape->begin() + normalize_axis(context, axis, rank), steps);
    }
    context.set_output(i, std::move(type));
  }
}

}  // namespace

void register_control_flow_schemas(SchemaTable& table) {
  table.add({.op = "If",
             .min_inputs = 1,
             .max_inputs = 1,
             .max_outputs = kVariadic,
             .required_attributes = {"then_branch", "else_branch"},
             .infer = infer_if});
  table.add({.op = "Loop",
             .min_inputs = 0,
             .max_inputs = kVariadic,
             .min_outputs = 0,
             .max_outputs = kVariadic,
             .required_attributes = {"body"},
             .infer = infer_loop});
  table.add({.op = "Scan",
             .min_inputs = 1,
             .max_inputs = kVariadic,
             .max_outputs = kVariadic,
             .required_attributes = {"body", "num_scan_inputs"},
             .infer = infer_scan});
}

}  // namespace quern
