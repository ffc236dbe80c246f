// Scatter: a copy of the data with updates written into it.
#include <algorithm>

#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

// Update i of `updates` goes to element targets[i] of `data`; several may meet there, in order, when they
// combine.
Tensor scatter(KernelContext& context, const Tensor& data, const Tensor& updates,
               const std::vector<int64_t>& targets, const std::string& reduction) {
  check_same_dtype(context, data, updates);
  if (reduction == "none") {
    std::vector<int64_t> sources(static_cast<size_t>(data.size()));
    for (int64_t i = 0; i < data.size(); ++i) sources[static_cast<size_t>(i)] = i;
    for (size_t i = 0; i < targets.size(); ++i) {
      sources[static_cast<size_t>(targets[i])] = data.size() + static_cast<int64_t>(i);
    }
    return gather_elements(context, {data, updates}, data.shape(), sources);
  }
  return with_computing_type(data.dtype(), [&]<class C>() {
    const Elements<C> in(data), values(updates);
    std::vector<C> out(in.begin(), in.end());
    for (size_t i = 0; i < targets.size(); ++i) {
      C& to = out[static_cast<size_t>(targets[i])];
      const C value = values[static_cast<int64_t>(i)];
      if (reduction == "add") {
        to = static_cast<C>(to + value);
      } else if (reduction == "mul") {
        to = static_cast<C>(to * value);
      } else if (reduction == "max") {
        to = std::max(to, value);
      } else if (reduction == "min") {
        to = std::min(to, value);
      } else {
        context.fail("reduction is '", reduction, "'");
      }
    }
    return to_tensor(data.dtype(), data.shape(), out);
  });
}

int64_t checked_index(const KernelContext& context, int64_t index, int64_t length) {
  if (index < -length || index >= length)
    context.fail("index ", index, " is outside an axis of length ", length);
  return index < 0 ? index + length : index;
}

void run_scatter_elements(KernelContext& context) {
  const Tensor& data = context.input(0);
  const Tensor& indices = context.input(1);
  const Tensor& updates = context.input(2);
  const auto axis =
      static_cast<size_t>(normalize_axis(context, context.node().int_attribute("axis", 0), data.rank()));
  if (indices.shape() != updates.shape() || indices.rank() != data.rank()) {
    context.fail("data, indices and updates of shapes ", to_string(data.shape()), ", ",
                 to_string(indices.shape()), ", ", to_string(updates.shape()));
  }
  for (size_t i = 0; i < data.shape().size(); ++i) {
    if (i != axis && indices.shape()[i] > data.shape()[i]) context.fail("the indices reach outside the data");
  }
  Shape strides = strides_of(data.shape());
  const int64_t along = strides[axis];
  strides[axis] = 0;
  const std::vector<int64_t> rows = int_values(indices);
  std::vector<int64_t> targets;
  for_each_offset<1>(indices.shape(), {strides}, [&](int64_t offset) {
    targets.push_back(offset + along * checked_index(context, rows[targets.size()], data.shape()[axis]));
  });
  const std::string reduction = context.node().string_attribute("reduction", "none");
  context.set_output(0, scatter(context, data, updates, targets, reduction));
}

void run_scatter_nd(KernelContext& context) {
  const Tensor& data = context.input(0);
  const Tensor& indices = context.input(1);
  const Tensor& updates = context.input(2);
  const int64_t depth = indices.rank() > 0 ? indices.dim(-1) : -1;
  if (depth < 0 || depth > data.rank()) {
    context.fail("indices of shape ", to_string(indices.shape()), " for data of shape ",
                 to_string(data.shape()));
  }
  Shape expected(indices.shape().begin(), indices.shape().end() - 1);
  expected.insert(expected.end(), data.shape().begin() + depth, data.shape().end());
  if (updates.shape() != expected) {
    context.fail("updates of shape ", to_string(updates.shape()), ", expected ", to_string(expected));
  }
  const int64_t inner = element_count(Shape(data.shape().begin() + depth, data.shape().end()));
  const int64_t tuples = element_count(Shape(indices.shape().begin(), indices.shape().end() - 1));
  const Shape strides = strides_of(data.shape());
  const std::vector<int64_t> index = int_values(indices);
  std::vector<int64_t> targets;
  for (int64_t t = 0; t < tuples; ++t) {
    int64_t offset = 0;
    for (int64_t d = 0; d < depth; ++d) {
      const auto axis = static_cast<size_t>(d);
      offset += strides[axis] *
                checked_index(context, index[static_cast<size_t>(t * depth + d)], data.shape()[axis]);
    }
    for (int64_t i = 0; i < inner; ++i) targets.push_back(offset + i);
  }
  const std::string reduction = context.node().string_attribute("reduction", "none");
  context.set_output(0, scatter(context, data, updates, targets, reduction));
}

}  // namespace

void register_scatter(KernelTable& table) {
  add_reference(table, {"Scatter", "ScatterElements"}, run_scatter_elements);
  add_reference(table, {"ScatterND"}, run_scatter_nd);
}

}  // namespace quern::runtime::reference
