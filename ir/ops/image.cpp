// Resampling of images and grids.
#include <algorithm>
#include <cmath>

#include "ir/ops/infer_common.h"
#include "ir/ops/register.h"

namespace quern {
namespace {

// The output length for a scale: floor(length * scale).
Dim scaled(const Dim& length, double scale) {
  if (scale == 1.0) return length;
  if (length.is_constant())
    return Dim(static_cast<int64_t>(std::floor(static_cast<double>(length.constant()) * scale)));
  if (scale == std::floor(scale) && scale < 1e6) return length * Dim(static_cast<int64_t>(scale));
  return Dim::fresh();
}

std::vector<int64_t> resize_axes(const InferContext& context, int64_t rank) {
  std::vector<int64_t> axes;
  for (int64_t i = 0; i < rank; ++i) axes.push_back(i);
  axes = context.node().ints_attribute("axes", axes);
  for (int64_t& axis : axes) axis = normalize_axis(context, axis, rank);
  return axes;
}

// keep_aspect_ratio_policy: one scale for all axes, the least or the greatest of those that the sizes ask
// for.
void keep_ratio(InferContext& context, SymShape& shape, const std::vector<int64_t>& axes,
                const std::string& policy) {
  double scale = policy == "not_larger" ? INFINITY : 0;
  const auto given = context.constant_ints(3);
  for (size_t i = 0; i < axes.size(); ++i) {
    const Dim& length = (*context.shape(0))[static_cast<size_t>(axes[i])];
    if (!given || !length.is_constant() || length.constant() == 0) {
      for (const int64_t axis : axes) shape[static_cast<size_t>(axis)] = Dim::fresh();
      return;
    }
    const double one = static_cast<double>((*given)[i]) / static_cast<double>(length.constant());
    scale = policy == "not_larger" ? std::min(scale, one) : std::max(scale, one);
  }
  for (const int64_t axis : axes) {
    Dim& dim = shape[static_cast<size_t>(axis)];
    const auto length = static_cast<double>((*context.shape(0))[static_cast<size_t>(axis)].constant());
    dim = Dim(static_cast<int64_t>(scale * length + 0.5));
  }
}

// (X, roi?, scales?, sizes?) from version 11 on, (X, scales) in 10.
void infer_resize(InferContext& context) {
  if (!context.shape(0)) return infer_rank(context, std::nullopt);
  SymShape shape = *context.shape(0);
  const std::vector<int64_t> axes = resize_axes(context, static_cast<int64_t>(shape.size()));
  const size_t scale_input = context.node().opset() < 11 ? 1 : 2;
  const bool has_sizes = context.has_input(3);
  const auto sizes = has_sizes ? context.elements(3) : std::nullopt;
  const Tensor* scales = context.tensor(scale_input);
  if (scales != nullptr && !is_floating(scales->dtype())) context.fail("its scales are no floats");
  if (has_sizes && sizes) {
    if (sizes->size() != axes.size())
      context.fail(concat(sizes->size(), " sizes for ", axes.size(), " axes"));
    for (size_t i = 0; i < axes.size(); ++i) shape[static_cast<size_t>(axes[i])] = (*sizes)[i];
    const std::string policy = context.node().string_attribute("keep_aspect_ratio_policy", "stretch");
    if (policy != "stretch") keep_ratio(context, shape, axes, policy);
  } else if (!has_sizes && scales != nullptr) {
    if (scales->size() != static_cast<int64_t>(axes.size())) {
      context.fail(concat(scales->size(), " scales for ", axes.size(), " axes"));
    }
    for (size_t i = 0; i < axes.size(); ++i) {
      Dim& dim = shape[static_cast<size_t>(axes[i])];
      dim = scaled(dim, scales->at(static_cast<int64_t>(i)));
    }
  } else {
    for (const int64_t axis : axes) shape[static_cast<size_t>(axis)] = Dim::fresh();
  }
  context.set_output(0, context.dtype(0), std::move(shape));
}

void infer_upsample(InferContext& context) {
  if (!context.shape(0)) return infer_rank(context, std::nullopt);
  SymShape shape = *context.shape(0);
  const Tensor* scales = context.tensor(1);
  if (scales != nullptr && !is_floating(scales->dtype())) context.fail("its scales are no floats");
  const std::vector<float> attribute = context.node().floats_attribute("scales", {});
  for (size_t i = 0; i < shape.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    if (scales != nullptr && at < scales->size()) {
      shape[i] = scaled(shape[i], scales->at(at));
    } else if (i < attribute.size()) {
      shape[i] = scaled(shape[i], attribute[i]);
    } else {
      shape[i] = Dim::fresh();
    }
  }
  context.set_output(0, context.dtype(0), std::move(shape));
}

// (X [N, C, in...], grid [N, out..., rank]) -> [N, C, out...]
void infer_grid_sample(InferContext& context) {
  if (!context.shape(0) || !context.shape(1)) return infer_rank(context, std::nullopt);
  const SymShape& grid = *context.shape(1);
  if (context.shape(0)->size() < 3 || grid.size() != context.shape(0)->size()) {
    context.fail("X and grid must have equal ranks of 3 or more");
  }
  SymShape shape{(*context.shape(0))[0], (*context.shape(0))[1]};
  shape.insert(shape.end(), grid.begin() + 1, grid.end() - 1);
  context.set_output(0, context.dtype(0), std::move(shape));
}

// (theta, size [N, C, out...]) -> [N, out..., rank]
void infer_affine_grid(InferContext& context) {
  const auto size = context.elements(1);
  if (!size || size->size() < 3) {
    context.set_output(0, context.dtype(0), std::nullopt);
    return;
  }
  SymShape shape{size->front()};
  shape.insert(shape.end(), size->begin() + 2, size->end());
  shape.emplace_back(static_cast<int64_t>(size->size()) - 2);
  context.set_output(0, context.dtype(0), std::move(shape));
}

void infer_non_max_suppression(InferContext& context) {
  context.set_output(0, DType::I64, SymShape{Dim::fresh(), Dim(3)});
}

}  // namespace

void register_image_schemas(SchemaTable& table) {
  table.add({.op = "Resize", .since = 10, .min_inputs = 1, .max_inputs = 4, .infer = infer_resize});
  table.add({.op = "Upsample", .since = 7, .min_inputs = 1, .max_inputs = 2, .infer = infer_upsample});
  table.add({.op = "GridSample", .min_inputs = 2, .max_inputs = 2, .infer = infer_grid_sample});
  table.add({.op = "AffineGrid", .min_inputs = 2, .max_inputs = 2, .infer = infer_affine_grid});
  table.add(
      {.op = "NonMaxSuppression", .min_inputs = 2, .max_inputs = 5, .infer = infer_non_max_suppression});
}

}  // namespace quern
