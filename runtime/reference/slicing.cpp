// Operators that take tensors apart and put them together.
#include <algorithm>
#include <limits>
#include <numeric>

#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

void run_concat(KernelContext& context) {
  std::vector<Tensor> parts;
  for (size_t i = 0; i < context.input_count(); ++i) parts.push_back(context.input(i));
  const int64_t axis = normalize_axis(context, context.node().int_attribute("axis", 1), parts.front().rank());
  context.set_output(0, concat_tensors(context, parts, axis));
}

void run_split(KernelContext& context) {
  const Tensor& x = context.input(0);
  const auto axis =
      static_cast<size_t>(normalize_axis(context, context.node().int_attribute("axis", 0), x.rank()));
  const auto count = static_cast<int64_t>(context.output_count());
  const int64_t length = x.shape()[axis];
  std::vector<int64_t> sizes;
  if (const auto given = ints_from(context, "split", 1)) {
    sizes = *given;
  } else {
    const int64_t chunk = (length + count - 1) / count;
    for (int64_t i = 0; i < count; ++i) sizes.push_back(std::clamp<int64_t>(length - i * chunk, 0, chunk));
  }
  if (sizes.size() != context.output_count()) context.fail(sizes.size(), " sizes for ", count, " outputs");
  int64_t begin = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || sizes[i] > length - begin) context.fail("the sizes do not add up to ", length);
    context.set_output(i, slice_axis(context, x, axis, begin, sizes[i]));
    begin += sizes[i];
  }
  if (begin != length) context.fail("the sizes do not add up to ", length);
}

struct Range {
  int64_t begin;
  int64_t step;
  int64_t count;
};

// The elements of an axis of length n that a slice takes; bounds beyond the ends are clamped.
Range slice_range(int64_t start, int64_t end, int64_t step, int64_t n) {
  const int64_t low = step > 0 ? 0 : -1;
  const int64_t high = step > 0 ? n : n - 1;
  const auto clamp = [&](int64_t at) {
    if (at < 0) at = at < -n ? -1 - n : at;  // out of reach of the addition
    return std::clamp(at < 0 ? at + n : at, low, high);
  };
  const int64_t first = clamp(start);
  const int64_t last = clamp(end);
  const int64_t distance = step > 0 ? last - first : first - last;
  if (distance <= 0) return {0, 1, 0};
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
  return {first, step, static_cast<int64_t>((static_cast<uint64_t>(distance) - 1) / stride + 1)};
}

// Bounds are attributes up to version 9 and inputs from 10 on.
void run_slice(KernelContext& context) {
  const Tensor& x = context.input(0);
  const std::vector<int64_t> starts = ints_from(context, "starts", 1).value_or(Shape{});
  const std::vector<int64_t> ends = ints_from(context, "ends", 2).value_or(Shape{});
  std::vector<int64_t> axes(starts.size());
  std::iota(axes.begin(), axes.end(), int64_t{0});
  axes = ints_from(context, "axes", 3).value_or(axes);
  const std::vector<int64_t> steps =
      context.has_input(4) ? int_values(context.input(4)) : std::vector<int64_t>(starts.size(), 1);
  if (ends.size() != starts.size() || axes.size() != starts.size() || steps.size() != starts.size()) {
    context.fail("starts, ends, axes and steps differ in number");
  }
  Shape shape = x.shape();
  Shape strides = strides_of(x.shape());
  int64_t offset = 0;
  for (size_t i = 0; i < starts.size(); ++i) {
    const auto axis = static_cast<size_t>(normalize_axis(context, axes[i], x.rank()));
    if (steps[i] == 0) context.fail("a step is 0");
    const Range range = slice_range(starts[i], ends[i], steps[i], shape[axis]);
    offset += range.begin * strides[axis];
    shape[axis] = range.count;
    strides[axis] = range.count > 1 ? strides[axis] * range.step : 0;
  }
  context.set_output(0, strided_copy(context, x, shape, strides, offset));
}

int64_t checked_index(const KernelContext& context, int64_t index, int64_t length) {
  if (index < -length || index >= length)
    context.fail("index ", index, " is outside an axis of length ", length);
  return index < 0 ? index + length : index;
}

void run_gather(KernelContext& context) {
  const Tensor& data = context.input(0);
  const Tensor& indices = context.input(1);
  const auto axis =
      static_cast<size_t>(normalize_axis(context, context.node().int_attribute("axis", 0), data.rank()));
  Shape shape(data.shape().begin(), data.shape().begin() + static_cast<int64_t>(axis));
  shape.insert(shape.end(), indices.shape().begin(), indices.shape().end());
  shape.insert(shape.end(), data.shape().begin() + static_cast<int64_t>(axis) + 1, data.shape().end());
  const int64_t inner = strides_of(data.shape())[axis];
  const int64_t length = data.shape()[axis];
  const int64_t outer =
      element_count(Shape(data.shape().begin(), data.shape().begin() + static_cast<int64_t>(axis)));
  std::vector<int64_t> rows = int_values(indices);
  for (int64_t& row : rows) row = checked_index(context, row, length);
  std::vector<int64_t> sources;
  sources.reserve(static_cast<size_t>(context.checked_count(data.dtype(), shape)));
  for (int64_t o = 0; o < outer; ++o) {
    for (const int64_t row : rows) {
      for (int64_t i = 0; i < inner; ++i) sources.push_back((o * length + row) * inner + i);
    }
  }
  context.set_output(0, gather_elements(context, {data}, shape, sources));
}

void run_gather_elements(KernelContext& context) {
  const Tensor& data = context.input(0);
  const Tensor& indices = context.input(1);
  const auto axis =
      static_cast<size_t>(normalize_axis(context, context.node().int_attribute("axis", 0), data.rank()));
  if (indices.rank() != data.rank()) context.fail("data and indices differ in rank");
  for (size_t i = 0; i < data.shape().size(); ++i) {
    if (i != axis && indices.shape()[i] > data.shape()[i]) context.fail("indices reach outside the data");
  }
  Shape strides = strides_of(data.shape());
  const int64_t along = strides[axis];
  strides[axis] = 0;
  const std::vector<int64_t> rows = int_values(indices);
  std::vector<int64_t> sources;
  for_each_offset<1>(indices.shape(), {strides}, [&](int64_t offset) {
    sources.push_back(offset + along * checked_index(context, rows[sources.size()], data.shape()[axis]));
  });
  context.set_output(0, gather_elements(context, {data}, indices.shape(), sources));
}

void run_gather_nd(KernelContext& context) {
  const Tensor& data = context.input(0);
  const Tensor& indices = context.input(1);
  const int64_t batch = context.node().int_attribute("batch_dims", 0);
  if (indices.rank() < 1) context.fail("the indices are a scalar");
  const int64_t depth = indices.dim(-1);
  if (batch < 0 || depth < 1 || batch >= indices.rank() || batch + depth > data.rank()) {
    context.fail("indices of shape ", to_string(indices.shape()), " do not fit data of shape ",
                 to_string(data.shape()));
  }
  Shape shape(indices.shape().begin(), indices.shape().end() - 1);
  shape.insert(shape.end(), data.shape().begin() + batch + depth, data.shape().end());
  const Shape strides = strides_of(data.shape());
  const int64_t inner = element_count(Shape(data.shape().begin() + batch + depth, data.shape().end()));
  const int64_t batches = element_count(Shape(indices.shape().begin(), indices.shape().begin() + batch));
  if (batches != element_count(Shape(data.shape().begin(), data.shape().begin() + batch))) {
    context.fail("the batch dimensions differ");
  }
  const std::vector<int64_t> index = int_values(indices);
  const int64_t tuples = static_cast<int64_t>(index.size()) / depth;
  const int64_t batch_stride = batches == 0 ? 0 : data.size() / batches;
  std::vector<int64_t> sources;
  sources.reserve(static_cast<size_t>(context.checked_count(data.dtype(), shape)));
  for (int64_t t = 0; t < tuples; ++t) {
    int64_t offset = t / (tuples / batches) * batch_stride;
    for (int64_t d = 0; d < depth; ++d) {
      const auto axis = static_cast<size_t>(batch + d);
      offset += strides[axis] *
                checked_index(context, index[static_cast<size_t>(t * depth + d)], data.shape()[axis]);
    }
    for (int64_t i = 0; i < inner; ++i) sources.push_back(offset + i);
  }
  context.set_output(0, gather_elements(context, {data}, shape, sources));
}

void run_compress(KernelContext& context) {
  const Tensor& x = context.input(0);
  const Tensor& condition = context.input(1);
  Tensor data = x;
  int64_t axis = 0;
  if (context.node().has_attribute("axis")) {
    axis = normalize_axis(context, context.node().int_attribute("axis", 0), x.rank());
  } else {
    data = x.reshaped({x.size()});
  }
  const auto at = static_cast<size_t>(axis);
  std::vector<int64_t> kept;
  for (int64_t i = 0; i < std::min(condition.size(), data.shape()[at]); ++i) {
    if (condition.int_at(i) != 0) kept.push_back(i);
  }
  Shape shape = data.shape();
  shape[at] = static_cast<int64_t>(kept.size());
  Shape strides = strides_of(data.shape());
  const int64_t along = strides[at];
  const int64_t inner = along;
  std::vector<int64_t> sources;
  const int64_t outer = inner * data.shape()[at] == 0 ? 0 : data.size() / (inner * data.shape()[at]);
  for (int64_t o = 0; o < outer; ++o) {
    for (const int64_t row : kept) {
      for (int64_t i = 0; i < inner; ++i) sources.push_back((o * data.shape()[at] + row) * inner + i);
    }
  }
  context.set_output(0, gather_elements(context, {data}, shape, sources));
}

// Where element `at` of a padded axis comes from; -1: the fill value.
int64_t padded_source(int64_t at, int64_t n, const std::string& mode) {
  if (at >= 0 && at < n) return at;
  if (mode == "constant" || n == 0) return -1;
  if (mode == "edge") return at < 0 ? 0 : n - 1;
  if (mode == "wrap") return (at % n + n) % n;
  if (n == 1) return 0;  // reflect
  const int64_t period = 2 * (n - 1);
  const int64_t folded = (at % period + period) % period;
  return folded < n ? folded : period - folded;
}

// pads, value and axes are attributes up to version 10 and inputs from 11 on; negative pads crop.
void run_pad(KernelContext& context) {
  const Tensor& x = context.input(0);
  const std::string mode = context.node().string_attribute("mode", "constant");
  const std::vector<int64_t> pads = ints_from(context, "pads", 1).value_or(Shape{});
  std::vector<int64_t> axes(static_cast<size_t>(x.rank()));
  std::iota(axes.begin(), axes.end(), int64_t{0});
  if (context.has_input(3)) axes = int_values(context.input(3));
  if (pads.size() != 2 * axes.size()) context.fail(pads.size(), " pads for ", axes.size(), " axes");
  Tensor fill = Tensor::zeros(x.dtype(), {1});
  if (context.has_input(2)) {
    fill = context.input(2).reshaped({1});
  } else if (context.node().has_attribute("value")) {
    fill.set(0, context.node().float_attribute("value", 0));
  }
  Shape shape = x.shape();
  Shape before(shape.size(), 0);
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<size_t>(normalize_axis(context, axes[i], x.rank()));
    before[axis] = pads[i];
    if (__builtin_add_overflow(shape[axis], pads[i], &shape[axis]) ||
        __builtin_add_overflow(shape[axis], pads[i + axes.size()], &shape[axis])) {
      context.fail("the pads are too large");
    }
  }
  const Shape strides = strides_of(x.shape());
  const int64_t count = context.checked_count(x.dtype(), shape);
  const Shape out_strides = strides_of(shape);
  std::vector<int64_t> sources(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    int64_t source = 0;
    for (size_t axis = 0; axis < shape.size() && source >= 0; ++axis) {
      const int64_t at =
          padded_source(i / out_strides[axis] % shape[axis] - before[axis], x.shape()[axis], mode);
      source = at < 0 ? -1 : source + at * strides[axis];
    }
    sources[static_cast<size_t>(i)] = source < 0 ? x.size() : source;
  }
  context.set_output(0, gather_elements(context, {x, fill}, shape, sources));
}

// Each axis cropped to, or padded with zeros around, the middle.
void run_center_crop_pad(KernelContext& context) {
  const Tensor& x = context.input(0);
  const std::vector<int64_t> target = int_values(context.input(1));
  std::vector<int64_t> axes(static_cast<size_t>(x.rank()));
  std::iota(axes.begin(), axes.end(), int64_t{0});
  axes = context.node().ints_attribute("axes", axes);
  if (axes.size() != target.size()) context.fail("the target shape and the axes differ in number");
  Shape shape = x.shape();
  Shape first(shape.size(), 0);
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<size_t>(normalize_axis(context, axes[i], x.rank()));
    const int64_t have = x.shape()[axis];
    if (target[i] < 0) context.fail("a negative target dimension");
    first[axis] = have > target[i] ? (have - target[i]) / 2 : -((target[i] - have) / 2);
    shape[axis] = target[i];
  }
  const int64_t count = context.checked_count(x.dtype(), shape);
  const Shape strides = strides_of(x.shape());
  const Shape out_strides = strides_of(shape);
  std::vector<int64_t> sources(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    int64_t source = 0;
    for (size_t axis = 0; axis < shape.size() && source >= 0; ++axis) {
      const int64_t at = i / out_strides[axis] % shape[axis] + first[axis];
      source = at < 0 || at >= x.shape()[axis] ? -1 : source + at * strides[axis];
    }
    sources[static_cast<size_t>(i)] = source < 0 ? x.size() : source;
  }
  context.set_output(0, gather_elements(context, {x, Tensor::zeros(x.dtype(), {1})}, shape, sources));
}

}  // namespace

void register_slicing(KernelTable& table) {
  add_reference(table, {"Concat"}, run_concat);
  add_reference(table, {"Split"}, run_split);
  add_reference(table, {"Slice"}, run_slice);
  add_reference(table, {"Gather"}, run_gather);
  add_reference(table, {"GatherElements"}, run_gather_elements);
  add_reference(table, {"GatherND"}, run_gather_nd);
  add_reference(table, {"Compress"}, run_compress);
  add_reference(table, {"Pad"}, run_pad);
  add_reference(table, {"CenterCropPad"}, run_center_crop_pad);
}

}  // namespace quern::runtime::reference
