// Operators that make tensors out of parameters, or out of what they find in one.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

void run_constant(KernelContext& context) {
  const Node& node = context.node();
  if (const Tensor* value = node.attribute<Tensor>("value")) {
    context.set_output(0, *value);
  } else if (node.has_attribute("value_int")) {
    context.set_output(0, Tensor::scalar(node.int_attribute("value_int", 0)));
  } else if (node.has_attribute("value_ints")) {
    const std::vector<int64_t> values = node.ints_attribute("value_ints", {});
    context.set_output(0, Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, values));
  } else if (node.has_attribute("value_float")) {
    context.set_output(0, Tensor::scalar(node.float_attribute("value_float", 0)));
  } else if (node.has_attribute("value_floats")) {
    const std::vector<float> values = node.floats_attribute("value_floats", {});
    context.set_output(0, Tensor::from<float>({static_cast<int64_t>(values.size())}, values));
  } else if (node.has_attribute("value_string")) {
    context.set_output(0, Tensor::from_strings({}, {node.string_attribute("value_string", "")}));
  } else if (const auto* strings = node.attribute<std::vector<std::string>>("value_strings")) {
    context.set_output(0, Tensor::from_strings({static_cast<int64_t>(strings->size())}, *strings));
  } else {
    context.unsupported("a constant of this kind (sparse?)");
  }
}

void run_constant_of_shape(KernelContext& context) {
  const Tensor* value = context.node().attribute<Tensor>("value");
  const Tensor fill = value != nullptr ? *value : Tensor::scalar(0.0F);
  if (fill.size() != 1) context.fail("the value has ", fill.size(), " elements, expected 1");
  const Shape shape = int_values(context.input(0));
  context.set_output(0, strided_copy(context, fill, shape, Shape(shape.size(), 0)));
}

void run_range(KernelContext& context) {
  const Tensor& start = context.input(0);
  const Tensor& limit = context.input(1);
  const Tensor& delta = context.input(2);
  for (const Tensor* t : {&start, &limit, &delta}) {
    if (t->size() != 1) context.fail("start, limit and delta must be scalars");
    check_same_dtype(context, start, *t);
  }
  const double step = delta.at(0);
  if (step == 0 || std::isnan(step)) context.fail("the step is ", step);
  const double exact = std::ceil((limit.at(0) - start.at(0)) / step);
  if (!std::isfinite(exact)) context.fail("the range has no end");
  constexpr double kMost = 9e18;  // far beyond any limit, and an int64
  const auto count = static_cast<int64_t>(std::clamp(exact, 0.0, kMost));
  context.checked_count(start.dtype(), {count});
  with_computing_type(start.dtype(), [&]<class C>() {
    const C first = Elements<C>(start)[0];
    const C by = Elements<C>(delta)[0];
    std::vector<C> out = make_buffer<C>(context, {count});
    for (int64_t i = 0; i < count; ++i) {
      if constexpr (std::is_integral_v<C>) {
        out[static_cast<size_t>(i)] = static_cast<C>(static_cast<uint64_t>(first) +
                                                     static_cast<uint64_t>(by) * static_cast<uint64_t>(i));
      } else {
        out[static_cast<size_t>(i)] = first + by * static_cast<C>(i);
      }
    }
    context.set_output(0, to_tensor(start.dtype(), {count}, out));
  });
}

void run_eye_like(KernelContext& context) {
  const Tensor& x = context.input(0);
  if (x.rank() != 2) context.fail("the input has rank ", x.rank(), ", expected 2");
  const int64_t number = context.node().int_attribute("dtype", 0);
  const int64_t k = std::clamp(context.node().int_attribute("k", 0), -x.dim(0), x.dim(1));
  const DType dtype = number != 0 ? dtype_from_onnx_number(number) : x.dtype();
  if (dtype == DType::String) context.fail("text has no ones");
  Tensor out = context.make(dtype, x.shape());
  for (int64_t row = std::max<int64_t>(0, -k); row < x.dim(0) && row + k < x.dim(1); ++row) {
    out.set(row * x.dim(1) + row + k, 1);
  }
  context.set_output(0, std::move(out));
}

void run_one_hot(KernelContext& context) {
  const Tensor& indices = context.input(0);
  if (context.input(1).size() != 1) context.fail("the depth is not a scalar");
  const auto depth = static_cast<int64_t>(context.input(1).at(0));
  const Tensor& values = context.input(2);
  if (values.size() != 2) context.fail("values has ", values.size(), " elements, expected 2");
  const int64_t axis = normalize_axis(context, context.node().int_attribute("axis", -1), indices.rank() + 1);
  Shape shape = indices.shape();
  shape.insert(shape.begin() + axis, depth);
  const int64_t count = context.checked_count(values.dtype(), shape);
  const int64_t inner = strides_of(shape)[static_cast<size_t>(axis)];
  std::vector<int64_t> sources(static_cast<size_t>(count), 0);
  for (int64_t i = 0; i < indices.size(); ++i) {
    auto hot = static_cast<int64_t>(indices.at(i));
    if (hot < -depth || hot >= depth) continue;
    if (hot < 0) hot += depth;
    sources[static_cast<size_t>((i / inner * depth + hot) * inner + i % inner)] = 1;
  }
  context.set_output(0, gather_elements(context, {values}, shape, sources));
}

void run_non_zero(KernelContext& context) {
  const Tensor& x = context.input(0);
  std::vector<int64_t> found;
  for (int64_t i = 0; i < x.size(); ++i) {
    if (x.dtype() == DType::String ? !x.strings()[static_cast<size_t>(i)].empty() : x.at(i) != 0)
      found.push_back(i);
  }
  // A scalar counts as a vector of one element.
  const Shape shape = x.rank() == 0 ? Shape{1} : x.shape();
  const Shape strides = strides_of(shape);
  std::vector<int64_t> out;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    for (const int64_t i : found) out.push_back(i / strides[axis] % shape[axis]);
  }
  context.set_output(0, Tensor::from<int64_t>(
                            {static_cast<int64_t>(shape.size()), static_cast<int64_t>(found.size())}, out));
}

// Distinct slices along an axis: for each slice the first that equals it, in order of appearance.
struct Distinct {
  std::vector<int64_t> first;    // of each distinct slice
  std::vector<int64_t> inverse;  // of each slice, the distinct one
  std::vector<int64_t> counts;
};

template <class Key>
Distinct distinct_slices(const std::vector<Key>& slices, bool sorted) {
  std::map<Key, int64_t> numbers;
  Distinct result;
  for (size_t i = 0; i < slices.size(); ++i) {
    const auto [entry, is_new] = numbers.try_emplace(slices[i], static_cast<int64_t>(result.first.size()));
    if (is_new) {
      result.first.push_back(static_cast<int64_t>(i));
      result.counts.push_back(0);
    }
    result.inverse.push_back(entry->second);
    ++result.counts[static_cast<size_t>(entry->second)];
  }
  if (!sorted) return result;
  std::vector<int64_t> rank(result.first.size());
  Distinct ordered;
  for (const auto& [key, number] : numbers) {
    const auto at = static_cast<size_t>(number);
    rank[at] = static_cast<int64_t>(ordered.first.size());
    ordered.first.push_back(result.first[at]);
    ordered.counts.push_back(result.counts[at]);
  }
  for (const int64_t number : result.inverse) ordered.inverse.push_back(rank[static_cast<size_t>(number)]);
  return ordered;
}

template <class T, class Get>
std::vector<std::vector<T>> slices_of(const Tensor& x, size_t axis, Get get) {
  const int64_t length = x.shape()[axis];
  const int64_t inner = strides_of(x.shape())[axis];
  std::vector<std::vector<T>> slices(static_cast<size_t>(length));
  for (int64_t i = 0; i < x.size(); ++i) slices[static_cast<size_t>(i / inner % length)].push_back(get(i));
  return slices;
}

void run_unique(KernelContext& context) {
  const bool flat = !context.node().has_attribute("axis");
  const Tensor x = flat ? context.input(0).reshaped({context.input(0).size()}) : context.input(0);
  const auto axis = static_cast<size_t>(
      flat ? 0 : normalize_axis(context, context.node().int_attribute("axis", 0), x.rank()));
  const bool sorted = context.node().int_attribute("sorted", 1) != 0;
  const Distinct distinct =
      x.dtype() == DType::String
          ? distinct_slices(slices_of<std::string>(
                                x, axis, [&](int64_t i) { return x.strings()[static_cast<size_t>(i)]; }),
                            sorted)
      : is_floating(x.dtype())
          ? distinct_slices(slices_of<double>(x, axis, [&](int64_t i) { return x.at(i); }), sorted)
          : distinct_slices(slices_of<int64_t>(x, axis, [&](int64_t i) { return x.int_at(i); }), sorted);
  std::vector<Tensor> parts;
  const auto count = static_cast<int64_t>(distinct.first.size());
  for (const int64_t at : distinct.first) parts.push_back(slice_axis(context, x, axis, at, 1));
  context.set_output(0, parts.empty() ? x : concat_tensors(context, parts, static_cast<int64_t>(axis)));
  context.set_output(1, Tensor::from<int64_t>({count}, distinct.first));
  context.set_output(
      2, Tensor::from<int64_t>({static_cast<int64_t>(distinct.inverse.size())}, distinct.inverse));
  context.set_output(3, Tensor::from<int64_t>({count}, distinct.counts));
}

}  // namespace

void register_generators(KernelTable& table) {
  add_reference(table, {"Constant"}, run_constant);
  add_reference(table, {"ConstantOfShape"}, run_constant_of_shape);
  add_reference(table, {"Range"}, run_range);
  add_reference(table, {"EyeLike"}, run_eye_like);
  add_reference(table, {"OneHot"}, run_one_hot);
  add_reference(table, {"NonZero"}, run_non_zero);
  add_reference(table, {"Unique"}, run_unique);
}

}  // namespace quern::runtime::reference
