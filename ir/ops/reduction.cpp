// Reductions and scans along axes.
#include <algorithm>

#include "ir/ops/infer_common.h"
#include "ir/ops/register.h"

namespace quern {
namespace {

void track_reduction(InferContext& context) {
  const auto elements = context.elements(0);
  const std::string& op = context.node().op();
  if (!elements || is_floating(context.dtype(0)) || elements->empty()) return;
  std::optional<Dim> result = elements->front();
  for (size_t i = 1; i < elements->size() && result; ++i) {
    const Dim& next = (*elements)[i];
    if (op == "ReduceSum") {
      result = *result + next;
    } else if (op == "ReduceProd") {
      result = *result * next;
    } else if (op == "ReduceMax") {
      result = known_max(*result, next);
    } else if (op == "ReduceMin") {
      result = known_min(*result, next);
    } else {
      return;
    }
  }
  if (result) context.set_elements(0, {*result});
}

// The shape left by reducing `axes`, all of them where none are given.
std::optional<SymShape> reduced_shape(const InferContext& context, const IntsParameter& axes, bool keep) {
  if (!context.shape(0)) return std::nullopt;
  const SymShape& shape = *context.shape(0);
  const auto rank = static_cast<int64_t>(shape.size());
  if (axes.given && !axes.values) {
    return keep ? std::optional(unknown_dims(shape.size())) : std::nullopt;
  }
  std::vector<int64_t> gone;
  if (axes.values && !axes.values->empty()) {
    gone = normalize_axes(context, *axes.values, rank);
  } else {
    for (int64_t i = 0; i < rank; ++i) gone.push_back(i);
  }
  SymShape out;
  for (int64_t i = 0; i < rank; ++i) {
    if (!std::binary_search(gone.begin(), gone.end(), i)) {
      out.push_back(shape[static_cast<size_t>(i)]);
    } else if (keep) {
      out.emplace_back(1);
    }
  }
  return out;
}

void infer_reduce(InferContext& context) {
  const Node& node = context.node();
  const IntsParameter axes = ints_parameter(context, "axes", 1);
  const bool none = !axes.given || (axes.values && axes.values->empty());
  if (none && node.int_attribute("noop_with_empty_axes", 0) != 0) return infer_same_as_input(context);
  context.set_output(0, context.dtype(0),
                     reduced_shape(context, axes, node.int_attribute("keepdims", 1) != 0));
  track_reduction(context);
}

void infer_arg_reduce(InferContext& context) {
  const Node& node = context.node();
  const IntsParameter axis{true, std::vector<int64_t>{node.int_attribute("axis", 0)}};
  context.set_output(0, DType::I64, reduced_shape(context, axis, node.int_attribute("keepdims", 1) != 0));
}

void infer_top_k(InferContext& context) {
  const Node& node = context.node();
  std::optional<SymShape> shape = context.shape(0);
  if (shape) {
    const int64_t axis =
        normalize_axis(context, node.int_attribute("axis", -1), static_cast<int64_t>(shape->size()));
    const auto k = context.elements(1);
    (*shape)[static_cast<size_t>(axis)] = node.has_attribute("k") ? Dim(node.int_attribute("k", 0))
                                          : k && k->size() == 1   ? k->front()
                                                                  : Dim::fresh();
  }
  context.set_output(0, context.dtype(0), shape);
  context.set_output(1, DType::I64, shape);
}

}  // namespace

void register_reduction_schemas(SchemaTable& table) {
  // Axes: an attribute up to version 17 (ReduceSum: 12), an input from then on.
  for (const char* op : {"ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
                         "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"}) {
    table.add({.op = op, .min_inputs = 1, .max_inputs = 2, .infer = infer_reduce});
  }
  for (const char* op : {"ArgMax", "ArgMin"}) {
    table.add({.op = op, .min_inputs = 1, .max_inputs = 1, .infer = infer_arg_reduce});
  }
  for (const char* op : {"Softmax", "LogSoftmax", "Hardmax", "LpNormalization"}) {
    table.add({.op = op, .min_inputs = 1, .max_inputs = 1, .infer = infer_same_as_input});
  }
  for (const char* op : {"CumSum", "CumProd"}) {
    table.add({.op = op, .min_inputs = 2, .max_inputs = 2, .infer = infer_same_as_input});
  }
  table.add({.op = "TopK",
             .min_inputs = 1,
             .max_inputs = 2,
             .min_outputs = 1,
             .max_outputs = 2,
             .infer = infer_top_k});
}

}  // namespace quern
