// Operators that give a tensor another shape or order.
#include <algorithm>
#include <numeric>
#include <set>

#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

void run_shape(KernelContext& context) {
  const Shape& shape = context.input(0).shape();
  const auto rank = static_cast<int64_t>(shape.size());
  const auto clamp = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + rank : i, 0, rank); };
  const int64_t begin = clamp(context.node().int_attribute("start", 0));
  const int64_t end = std::max(begin, clamp(context.node().int_attribute("end", rank)));
  const std::vector<int64_t> dims(shape.begin() + begin, shape.begin() + end);
  context.set_output(0, Tensor::from<int64_t>({end - begin}, dims));
}

void run_size(KernelContext& context) {
  context.set_output(0, Tensor::scalar(context.input(0).size()));
}

// 0 copies a dimension unless allowzero, -1 takes what is left.
void run_reshape(KernelContext& context) {
  const Tensor& x = context.input(0);
  const Shape target = ints_from(context, "shape", 1).value_or(Shape{});
  const bool zero_means_zero = context.node().int_attribute("allowzero", 0) != 0;
  Shape shape = target;
  std::optional<size_t> rest;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0 && !zero_means_zero) {
      if (i >= x.shape().size()) context.fail("dimension ", i, " of the new shape has nothing to copy");
      shape[i] = x.shape()[i];
    } else if (shape[i] == -1) {
      if (rest) context.fail("the new shape ", to_string(target), " has more than one -1");
      rest = i;
    } else if (shape[i] < 0) {
      context.fail("the new shape ", to_string(target), " has a negative dimension");
    }
  }
  if (rest) {
    shape[*rest] = 1;
    const int64_t known = element_count(shape);
    if (known == 0 ? x.size() != 0 : x.size() % known != 0) {
      context.fail(to_string(x.shape()), " cannot become ", to_string(target));
    }
    shape[*rest] = known == 0 ? 0 : x.size() / known;
  }
  if (element_count(shape) != x.size())
    context.fail(to_string(x.shape()), " cannot become ", to_string(target));
  context.set_output(0, x.reshaped(shape));
}

void run_flatten(KernelContext& context) {
  const Tensor& x = context.input(0);
  const auto rank = static_cast<int64_t>(x.rank());
  int64_t axis = context.node().int_attribute("axis", 1);
  if (axis < -rank || axis > rank) context.fail("axis ", axis, " is outside a tensor of rank ", rank);
  if (axis < 0) axis += rank;
  const int64_t rows = element_count(Shape(x.shape().begin(), x.shape().begin() + axis));
  const int64_t columns = element_count(Shape(x.shape().begin() + axis, x.shape().end()));
  context.set_output(0, x.reshaped({rows, columns}));
}

void run_transpose(KernelContext& context) {
  const Tensor& x = context.input(0);
  std::vector<int64_t> perm(static_cast<size_t>(x.rank()));
  std::iota(perm.rbegin(), perm.rend(), int64_t{0});
  perm = context.node().ints_attribute("perm", perm);
  if (static_cast<int>(perm.size()) != x.rank()) {
    context.fail("perm has ", perm.size(), " entries for a tensor of rank ", x.rank());
  }
  normalize_axes(context, perm, x.rank());
  const Shape own = strides_of(x.shape());
  Shape shape;
  Shape strides;
  for (const int64_t axis : perm) {
    const auto at = static_cast<size_t>(axis < 0 ? axis + x.rank() : axis);
    shape.push_back(x.shape()[at]);
    strides.push_back(own[at]);
  }
  context.set_output(0, strided_copy(context, x, shape, strides));
}

void run_unsqueeze(KernelContext& context) {
  const Tensor& x = context.input(0);
  const std::optional<std::vector<int64_t>> given = ints_from(context, "axes", 1);
  if (!given) context.fail("axes are missing");
  Shape shape = x.shape();
  const auto rank = static_cast<int64_t>(shape.size() + given->size());
  for (const int64_t axis : normalize_axes(context, *given, rank)) shape.insert(shape.begin() + axis, 1);
  context.set_output(0, x.reshaped(shape));
}

void run_squeeze(KernelContext& context) {
  const Tensor& x = context.input(0);
  std::optional<std::vector<int64_t>> given = ints_from(context, "axes", 1);
  Shape shape;
  if (given) given = normalize_axes(context, *given, x.rank());
  for (int64_t i = 0; i < x.rank(); ++i) {
    const int64_t dim = x.shape()[static_cast<size_t>(i)];
    const bool gone = given ? std::binary_search(given->begin(), given->end(), i) : dim == 1;
    if (gone && dim != 1) context.fail("dimension ", i, " of ", to_string(x.shape()), " is not 1");
    if (!gone) shape.push_back(dim);
  }
  context.set_output(0, x.reshaped(shape));
}

void run_expand(KernelContext& context) {
  const Tensor& x = context.input(0);
  const Shape target = int_values(context.input(1));
  const Shape shape = broadcast_shapes(x.shape(), target);
  context.set_output(0, strided_copy(context, x, shape, broadcast_strides(x.shape(), shape)));
}

void run_tile(KernelContext& context) {
  const Tensor& x = context.input(0);
  const std::vector<int64_t> repeats = int_values(context.input(1));
  if (static_cast<int>(repeats.size()) != x.rank()) {
    context.fail(repeats.size(), " repeats for a tensor of rank ", x.rank());
  }
  // Each axis as a pair (repeat, element), the repeat without a stride.
  const Shape own = strides_of(x.shape());
  Shape paired;
  Shape strides;
  Shape shape;
  for (size_t i = 0; i < repeats.size(); ++i) {
    if (repeats[i] < 0) context.fail("a negative repeat");
    paired.insert(paired.end(), {repeats[i], x.shape()[i]});
    strides.insert(strides.end(), {0, own[i]});
    context.checked_count(x.dtype(), paired);
    shape.push_back(repeats[i] * x.shape()[i]);
  }
  context.set_output(0, strided_copy(context, x, paired, strides).reshaped(shape));
}

// Copies x with its axes cut into `split`, in the order `perm`, to the shape `shape`.
Tensor permuted(KernelContext& context, const Tensor& x, const Shape& split, const std::vector<size_t>& perm,
                const Shape& shape) {
  const Shape own = strides_of(split);
  Shape permuted_shape;
  Shape strides;
  for (const size_t axis : perm) {
    permuted_shape.push_back(split[axis]);
    strides.push_back(own[axis]);
  }
  return strided_copy(context, x, permuted_shape, strides).reshaped(shape);
}

int64_t block_size(KernelContext& context, const Tensor& x) {
  const int64_t block = context.node().int_attribute("blocksize", 0);
  if (block < 1 || block > 1'000'000) context.fail("blocksize is ", block);
  if (x.rank() != 4) context.fail("the input has rank ", x.rank(), ", expected 4");
  return block;
}

void run_depth_to_space(KernelContext& context) {
  const Tensor& x = context.input(0);
  const int64_t b = block_size(context, x);
  const int64_t n = x.dim(0), c = x.dim(1), h = x.dim(2), w = x.dim(3);
  if (c % (b * b) != 0) context.fail("depth ", c, " is no multiple of ", b * b);
  const Shape shape{n, c / (b * b), h * b, w * b};
  if (context.node().string_attribute("mode", "DCR") == "CRD") {
    context.set_output(0, permuted(context, x, {n, c / (b * b), b, b, h, w}, {0, 1, 4, 2, 5, 3}, shape));
  } else {
    context.set_output(0, permuted(context, x, {n, b, b, c / (b * b), h, w}, {0, 3, 4, 1, 5, 2}, shape));
  }
}

void run_space_to_depth(KernelContext& context) {
  const Tensor& x = context.input(0);
  const int64_t b = block_size(context, x);
  const int64_t n = x.dim(0), c = x.dim(1), h = x.dim(2), w = x.dim(3);
  if (h % b != 0 || w % b != 0) context.fail("height and width are no multiples of ", b);
  context.set_output(
      0, permuted(context, x, {n, c, h / b, b, w / b, b}, {0, 3, 5, 1, 2, 4}, {n, c * b * b, h / b, w / b}));
}

void run_reverse_sequence(KernelContext& context) {
  const Tensor& x = context.input(0);
  const std::vector<int64_t> lengths = int_values(context.input(1));
  const auto time =
      static_cast<size_t>(normalize_axis(context, context.node().int_attribute("time_axis", 0), x.rank()));
  const auto batch =
      static_cast<size_t>(normalize_axis(context, context.node().int_attribute("batch_axis", 1), x.rank()));
  if (time == batch || lengths.size() != static_cast<size_t>(x.shape()[batch])) {
    context.fail("axes or lengths do not fit the input");
  }
  const Shape strides = strides_of(x.shape());
  std::vector<int64_t> sources;
  for (int64_t i = 0; i < x.size(); ++i) {
    const int64_t t = i / strides[time] % x.shape()[time];
    const int64_t length = lengths[static_cast<size_t>(i / strides[batch] % x.shape()[batch])];
    sources.push_back(t < length ? i + (length - 1 - 2 * t) * strides[time] : i);
  }
  context.set_output(0, gather_elements(context, {x}, x.shape(), sources));
}

void run_trilu(KernelContext& context) {
  const Tensor& x = context.input(0);
  if (x.rank() < 2) context.fail("the input has rank ", x.rank(), ", expected 2 or more");
  const bool upper = context.node().int_attribute("upper", 1) != 0;
  const int64_t k = context.has_input(1) ? int_scalar(context, 1) : 0;
  const int64_t columns = x.dim(-1);
  const int64_t rows = x.dim(-2);
  // k may be any integer; beyond the matrix all the same happens.
  const int64_t diagonal = std::clamp(k, -rows - columns, rows + columns);
  std::vector<int64_t> sources;
  for (int64_t i = 0; i < x.size(); ++i) {
    const int64_t above = i % columns - i / columns % rows - diagonal;
    sources.push_back((upper ? above >= 0 : above <= 0) ? i : x.size());
  }
  context.set_output(0, gather_elements(context, {x, Tensor::zeros(x.dtype(), {1})}, x.shape(), sources));
}

}  // namespace

void register_movement(KernelTable& table) {
  add_reference(table, {"Shape"}, run_shape);
  add_reference(table, {"Size"}, run_size);
  add_reference(table, {"Reshape"}, run_reshape);
  add_reference(table, {"Flatten"}, run_flatten);
  add_reference(table, {"Transpose"}, run_transpose);
  add_reference(table, {"Unsqueeze"}, run_unsqueeze);
  add_reference(table, {"Squeeze"}, run_squeeze);
  add_reference(table, {"Expand"}, run_expand);
  add_reference(table, {"Tile"}, run_tile, 6);
  add_reference(table, {"DepthToSpace"}, run_depth_to_space);
  add_reference(table, {"SpaceToDepth"}, run_space_to_depth);
  add_reference(table, {"ReverseSequence"}, run_reverse_sequence);
  add_reference(table, {"Trilu"}, run_trilu);
}

}  // namespace quern::runtime::reference
