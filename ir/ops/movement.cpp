// Operators that give a tensor another shape or order.
#include <algorithm>
#include <set>

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
  const auto clamp = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + rank : i, 0, rank); };
  const int64_t begin = clamp(context.node().int_attribute("start", 0));
  const int64_t end = std::max(begin, clamp(context.node().int_attribute("end", rank)));
  std::vector<Dim> elements(shape.begin() + begin, shape.begin() + end);
  context.set_output(0, DType::I64, SymShape{Dim(end - begin)});
  context.set_elements(0, std::move(elements));
}

void infer_size(InferContext& context) {
  context.set_output(0, DType::I64, SymShape{});
  if (context.shape(0)) context.set_elements(0, {product(*context.shape(0))});
}

// The requested shape of a Reshape from input 1, or from the attribute of version 1.
std::optional<std::vector<Dim>> reshape_target(const InferContext& context) {
  if (context.has_input(1)) return context.elements(1);
  if (!context.node().has_attribute("shape")) return std::nullopt;
  std::vector<Dim> dims;
  for (const int64_t dim : context.node().ints_attribute("shape", {})) dims.emplace_back(dim);
  return dims;
}

// 0 copies a dimension, -1 takes what is left: the quotient of polynomials, where there is one.
SymShape resolve_reshape(const InferContext& context, const std::vector<Dim>& target) {
  const bool zero_means_zero = context.node().int_attribute("allowzero", 0) != 0;
  const std::optional<SymShape>& from = context.shape(0);
  SymShape shape = target;
  std::optional<size_t> rest;
  std::set<size_t> copied;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == Dim(0) && !zero_means_zero) {
      if (from && i >= from->size()) context.fail("dimension 0 of the new shape has nothing to copy");
      shape[i] = from ? (*from)[i] : Dim::fresh();
      copied.insert(i);
    } else if (shape[i] == Dim(-1)) {
      if (rest) context.fail("the new shape has more than one -1");
      rest = i;
    } else if (shape[i].is_constant() && shape[i].constant() < 0) {
      context.fail(concat("the new shape ", to_string(target), " has a negative dimension"));
    }
  }
  if (!from) {
    if (rest) shape[*rest] = Dim::fresh();
    return shape;
  }
  // Copied dimensions cancel, also where they may be zero.
  Dim whole(1);
  Dim taken(1);
  for (size_t i = 0; i < from->size(); ++i) {
    if (!copied.contains(i)) whole = whole * (*from)[i];
  }
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i != rest && !copied.contains(i)) taken = taken * shape[i];
  }
  if (rest) {
    const std::optional<Dim> quotient = whole.divided_by(taken);
    if (!quotient && whole.is_constant() && taken.is_constant() && taken.constant() != 0) {
      context.fail(concat(to_string(*from), " cannot become ", to_string(target)));
    }
    shape[*rest] = quotient ? *quotient : Dim::fresh();
  } else if (whole.is_constant() && taken.is_constant() && !(whole == taken)) {
    context.fail(concat(to_string(*from), " cannot become ", to_string(target)));
  }
  return shape;
}

void infer_reshape(InferContext& context) {
  const std::optional<std::vector<Dim>> target = reshape_target(context);
  if (!target) {
    const std::optional<SymShape>& of_target = context.shape(1);
    const bool rank_known = of_target && of_target->size() == 1 && of_target->front().is_constant();
    const int64_t rank = rank_known ? of_target->front().constant() : 0;
    if (rank_known && rank >= 0 && rank <= 64) return infer_rank(context, static_cast<size_t>(rank));
    return infer_rank(context, std::nullopt);
  }
  SymShape shape = resolve_reshape(context, *target);
  const bool keeps_elements = shape.size() <= 1;
  context.set_output(0, context.dtype(0), std::move(shape));
  if (const auto elements = context.elements(0); elements && keeps_elements)
    context.set_elements(0, *elements);
}

void infer_flatten(InferContext& context) {
  if (!context.shape(0)) return infer_rank(context, 2);
  const SymShape& shape = *context.shape(0);
  const auto rank = static_cast<int64_t>(shape.size());
  int64_t axis = context.node().int_attribute("axis", 1);
  if (axis < -rank || axis > rank) context.fail(concat("axis ", axis, " is outside a tensor of rank ", rank));
  if (axis < 0) axis += rank;
  const std::span<const Dim> dims(shape);
  const auto split = static_cast<size_t>(axis);
  context.set_output(0, context.dtype(0), SymShape{product(dims.first(split)), product(dims.subspan(split))});
}

void infer_transpose(InferContext& context) {
  if (!context.shape(0)) return infer_rank(context, std::nullopt);
  const SymShape& shape = *context.shape(0);
  std::vector<int64_t> perm;
  for (size_t i = shape.size(); i-- > 0;) perm.push_back(static_cast<int64_t>(i));
  perm = context.node().ints_attribute("perm", perm);
  if (perm.size() != shape.size()) {
    context.fail(concat("perm has ", perm.size(), " entries for a tensor of rank ", shape.size()));
  }
  normalize_axes(context, perm, static_cast<int64_t>(shape.size()));
  SymShape out;
  for (const int64_t axis : perm) {
    out.push_back(
        shape[static_cast<size_t>(normalize_axis(context, axis, static_cast<int64_t>(shape.size())))]);
  }
  context.set_output(0, context.dtype(0), out);
  if (const auto elements = context.elements(0)) context.set_elements(0, *elements);
}

void infer_unsqueeze(InferContext& context) {
  const IntsParameter axes = ints_parameter(context, "axes", 1);
  if (!axes.given) context.fail("axes are missing");
  if (!axes.values || !context.shape(0)) return infer_rank(context, std::nullopt);
  SymShape shape = *context.shape(0);
  const auto rank = static_cast<int64_t>(shape.size() + axes.values->size());
  for (const int64_t axis : normalize_axes(context, *axes.values, rank))
    shape.insert(shape.begin() + axis, Dim(1));
  const bool keeps_elements = shape.size() <= 1;
  context.set_output(0, context.dtype(0), std::move(shape));
  if (const auto elements = context.elements(0); elements && keeps_elements)
    context.set_elements(0, *elements);
}

void infer_squeeze(InferContext& context) {
  const IntsParameter axes = ints_parameter(context, "axes", 1);
  if (!context.shape(0) || (axes.given && !axes.values)) return infer_rank(context, std::nullopt);
  const SymShape& shape = *context.shape(0);
  SymShape out;
  if (axes.given) {
    const auto rank = static_cast<int64_t>(shape.size());
    const std::vector<int64_t> gone = normalize_axes(context, *axes.values, rank);
    for (int64_t i = 0; i < rank; ++i) {
      const Dim& dim = shape[static_cast<size_t>(i)];
      if (!std::binary_search(gone.begin(), gone.end(), i)) {
        out.push_back(dim);
      } else if (dim.is_constant() && !(dim == Dim(1))) {
        context.fail(concat("dimension ", i, " of ", to_string(shape), " is not 1"));
      }
    }
  } else {
    for (const Dim& dim : shape) {
      if (!dim.is_constant()) return infer_rank(context, std::nullopt);
      if (!(dim == Dim(1))) out.push_back(dim);
    }
  }
  context.set_output(0, context.dtype(0), std::move(out));
  if (const auto elements = context.elements(0)) context.set_elements(0, *elements);
}

void infer_expand(InferContext& context) {
  const auto target = context.elements(1);
  if (!target || !context.shape(0)) {
    const std::optional<SymShape>& of_target = context.shape(1);
    if (of_target && context.shape(0) && of_target->size() == 1 && of_target->front().is_constant() &&
        of_target->front().constant() >= 0 && of_target->front().constant() <= 64) {
      const auto length = static_cast<size_t>(of_target->front().constant());
      return infer_rank(context, std::max(length, context.shape(0)->size()));
    }
    return infer_rank(context, std::nullopt);
  }
  const std::optional<SymShape> shape = broadcast(*context.shape(0), *target);
  if (!shape) context.fail(concat(to_string(*context.shape(0)), " does not expand to ", to_string(*target)));
  context.set_output(0, context.dtype(0), shape);
  const auto elements = context.elements(0);
  if (!elements || shape->size() > 1) return;
  const std::optional<int64_t> count = product(*shape).as_constant();
  if (elements->size() == 1 && count && *count >= 0 && *count <= static_cast<int64_t>(kMaxTrackedElements)) {
    context.set_elements(0, std::vector<Dim>(static_cast<size_t>(*count), elements->front()));
  } else if (count && static_cast<int64_t>(elements->size()) == *count) {
    context.set_elements(0, *elements);
  }
}

void infer_tile(InferContext& context) {
  const auto repeats = context.elements(1);
  if (!context.shape(0)) return infer_rank(context, std::nullopt);
  SymShape shape = *context.shape(0);
  if (!repeats) return infer_rank(context, shape.size());
  if (repeats->size() != shape.size()) {
    context.fail(concat(repeats->size(), " repeats for a tensor of rank ", shape.size()));
  }
  for (size_t i = 0; i < shape.size(); ++i) shape[i] = shape[i] * (*repeats)[i];
  context.set_output(0, context.dtype(0), std::move(shape));
}

// Blocks of the depth dimension (axis 1) move to height and width, or back.
void infer_depth_space(InferContext& context) {
  if (!context.shape(0) || context.shape(0)->size() != 4) return infer_rank(context, 4);
  SymShape shape = *context.shape(0);
  const Dim block(context.node().int_attribute("blocksize", 1));
  const bool to_space = context.node().op() == "DepthToSpace";
  const auto divided = [](const Dim& a, const Dim& b) {
    const std::optional<Dim> quotient = a.divided_by(b);
    return quotient ? *quotient : Dim::fresh();
  };
  shape[1] = to_space ? divided(shape[1], block * block) : shape[1] * block * block;
  shape[2] = to_space ? shape[2] * block : divided(shape[2], block);
  shape[3] = to_space ? shape[3] * block : divided(shape[3], block);
  context.set_output(0, context.dtype(0), std::move(shape));
}

void infer_center_crop_pad(InferContext& context) {
  if (!context.shape(0)) return infer_rank(context, std::nullopt);
  SymShape shape = *context.shape(0);
  std::vector<int64_t> axes;
  for (size_t i = 0; i < shape.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  axes = context.node().ints_attribute("axes", axes);
  const auto target = context.elements(1);
  if (target && target->size() != axes.size()) context.fail("the target shape and the axes differ in number");
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t axis = normalize_axis(context, axes[i], static_cast<int64_t>(shape.size()));
    shape[static_cast<size_t>(axis)] = target ? (*target)[i] : Dim::fresh();
  }
  context.set_output(0, context.dtype(0), std::move(shape));
}

}  // namespace

void register_movement_schemas(SchemaTable& table) {
  table.add({.op = "Shape", .min_inputs = 1, .max_inputs = 1, .infer = infer_shape_op});
  table.add({.op = "Size", .min_inputs = 1, .max_inputs = 1, .infer = infer_size});
  table.add({.op = "Reshape", .min_inputs = 1, .max_inputs = 2, .infer = infer_reshape});
  table.add({.op = "Flatten", .min_inputs = 1, .max_inputs = 1, .infer = infer_flatten});
  table.add({.op = "Transpose", .min_inputs = 1, .max_inputs = 1, .infer = infer_transpose});
  // Axes of Squeeze and Unsqueeze: an attribute up to version 12, an input from 13 on.
  table.add({.op = "Unsqueeze", .min_inputs = 1, .max_inputs = 2, .infer = infer_unsqueeze});
  table.add({.op = "Squeeze", .min_inputs = 1, .max_inputs = 2, .infer = infer_squeeze});
  table.add({.op = "Expand", .min_inputs = 2, .max_inputs = 2, .infer = infer_expand});
  table.add({.op = "Tile", .since = 6, .min_inputs = 2, .max_inputs = 2, .infer = infer_tile});
  for (const char* op : {"DepthToSpace", "SpaceToDepth"}) {
    table.add({.op = op,
               .min_inputs = 1,
               .max_inputs = 1,
               .required_attributes = {"blocksize"},
               .infer = infer_depth_space});
  }
  for (const char* op : {"ReverseSequence", "Trilu"}) {
    table.add({.op = op, .min_inputs = 1, .max_inputs = 2, .infer = infer_same_as_input});
  }
  table.add({.op = "CenterCropPad", .min_inputs = 2, .max_inputs = 2, .infer = infer_center_crop_pad});
}

}  // namespace quern
