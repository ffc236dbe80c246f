#include "ir/ops/infer_common.h"

#include <algorithm>

namespace quern {

void infer_same_as_input(InferContext& context) {
  context.set_output(0, context.input_type(0));
}

void check_rotary(InferContext& context, const std::string& interleaved, size_t cos_input) {
  const Node& node = context.node();
  const int64_t flag = node.int_attribute(interleaved, 0);
  if (flag != 0 && flag != 1) context.fail(concat(interleaved, " is ", flag, ", neither 0 nor 1"));
  const int64_t rotary = node.int_attribute("rotary_embedding_dim", 0);
  if (rotary < 0 || rotary % 2 != 0) context.fail(concat("rotary_embedding_dim is ", rotary));
  if (rotary == 0 || !context.has_input(cos_input)) return;
  const auto& cos = context.shape(cos_input);
  const auto columns = cos && !cos->empty() ? cos->back().as_constant() : std::nullopt;
  if (columns && *columns != rotary / 2) {
    context.fail(concat("rotary_embedding_dim is ", rotary, ", the caches have ", *columns, " columns"));
  }
}

void infer_broadcast(InferContext& context) {
  infer_broadcast_as(context, context.dtype(0));
}

void infer_broadcast_as(InferContext& context, DType dtype) {
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
  context.set_output(0, dtype, shape);
}

void infer_rank(InferContext& context, std::optional<size_t> rank) {
  context.set_output(0, context.dtype(0), rank ? std::optional(unknown_dims(*rank)) : std::nullopt);
}

int64_t normalize_axis(const InferContext& context, int64_t axis, int64_t rank) {
  if (axis < -rank || axis >= rank)
    context.fail(concat("axis ", axis, " is outside a tensor of rank ", rank));
  return axis < 0 ? axis + rank : axis;
}

std::vector<int64_t> normalize_axes(const InferContext& context, std::vector<int64_t> axes, int64_t rank) {
  for (int64_t& axis : axes) axis = normalize_axis(context, axis, rank);
  std::sort(axes.begin(), axes.end());
  if (std::adjacent_find(axes.begin(), axes.end()) != axes.end()) context.fail("an axis is given twice");
  return axes;
}

SymShape unknown_dims(size_t rank) {
  SymShape shape;
  for (size_t i = 0; i < rank; ++i) shape.push_back(Dim::fresh());
  return shape;
}

IntsParameter ints_parameter(const InferContext& context, const std::string& attribute, size_t input) {
  if (context.has_input(input)) return {true, context.constant_ints(input)};
  if (context.node().has_attribute(attribute)) return {true, context.node().ints_attribute(attribute, {})};
  return {};
}

std::optional<bool> known_equal(const Dim& a, const Dim& b) {
  if (a == b) return true;
  const std::optional<int64_t> above = (a - b).lower_bound();
  const std::optional<int64_t> below = (b - a).lower_bound();
  if ((above && *above > 0) || (below && *below > 0)) return false;
  return std::nullopt;
}

std::optional<bool> known_less(const Dim& a, const Dim& b) {
  const std::optional<int64_t> above = (a - b).lower_bound();
  if (above && *above >= 0) return false;
  const std::optional<int64_t> below = (b - a).lower_bound();
  if (below && *below > 0) return true;
  return std::nullopt;
}

std::optional<Dim> known_min(const Dim& a, const Dim& b) {
  const std::optional<int64_t> above = (a - b).lower_bound();
  if (above && *above >= 0) return b;
  const std::optional<int64_t> below = (b - a).lower_bound();
  if (below && *below >= 0) return a;
  return std::nullopt;
}

std::optional<Dim> known_max(const Dim& a, const Dim& b) {
  const std::optional<Dim> least = known_min(a, b);
  if (!least) return std::nullopt;
  return *least == a ? b : a;
}

void track_elements(InferContext& context,
                    const std::function<std::optional<Dim>(const Dim&, const Dim&)>& op) {
  const auto a = context.elements(0);
  const auto b = context.elements(1);
  if (!a || !b || (a->size() != b->size() && a->size() != 1 && b->size() != 1)) return;
  const size_t count = a->size() == 1 ? b->size() : a->size();
  std::vector<Dim> result;
  for (size_t i = 0; i < count; ++i) {
    const std::optional<Dim> element = op((*a)[a->size() == 1 ? 0 : i], (*b)[b->size() == 1 ? 0 : i]);
    if (!element) return;
    result.push_back(*element);
  }
  context.set_elements(0, std::move(result));
}

void track_elements(InferContext& context, const std::function<std::optional<Dim>(const Dim&)>& op) {
  const auto a = context.elements(0);
  if (!a) return;
  std::vector<Dim> result;
  for (const Dim& element : *a) {
    const std::optional<Dim> mapped = op(element);
    if (!mapped) return;
    result.push_back(*mapped);
  }
  context.set_elements(0, std::move(result));
}

Dim window_count(const Dim& length, int64_t reach, int64_t pads, int64_t stride, bool ceil) {
  const Dim room = length + Dim(pads) - Dim(reach);
  if (const std::optional<int64_t> known = room.as_constant()) {
    if (*known < 0) return Dim(0);
    return Dim((ceil ? (*known + stride - 1) / stride : *known / stride) + 1);
  }
  return stride == 1 ? room + Dim(1) : Dim::fresh();
}

}  // namespace quern
