// Tensors as arrays of one of four computing types, so that a kernel switches over dtypes once: float (f32,
// f16, bf16 and the 8-bit floats), double (f64), uint64_t (u64), int64_t (other integers and bool). Results
// are rounded to the dtype, or wrapped for integers, when they are stored.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/tensor.h"
#include "runtime/kernel_context.h"

namespace quern::runtime::reference {

// body.template operator()<C>() with the computing type of the dtype. Throws Error{InvalidModel} for strings.
template <class Body>
decltype(auto) with_computing_type(DType dtype, Body&& body) {
  if (dtype == DType::F64) return body.template operator()<double>();
  if (is_floating(dtype) || dtype == DType::F8E8M0) return body.template operator()<float>();
  if (dtype == DType::U64) return body.template operator()<uint64_t>();
  if (is_integer(dtype) || dtype == DType::Bool) return body.template operator()<int64_t>();
  throw_error(ErrorCode::InvalidModel, "a tensor of type ", to_string(dtype), " where numbers are expected");
}

// Throws Error{InvalidModel}.
[[noreturn]] void refuse_element(int64_t i, size_t count);

// The elements of a tensor as C: a view where the tensor holds C already, else a widened copy. Shapes come
// from the model: an element outside the tensor throws Error{InvalidModel}.
template <class C>
class Elements {
 public:
  explicit Elements(const Tensor& tensor);
  Elements(Elements&&) noexcept = default;  // a copy would look at the original's array
  Elements& operator=(Elements&&) = delete;
  size_t size() const { return view_.size(); }
  bool empty() const { return view_.empty(); }
  const C* data() const { return view_.data(); }
  C operator[](int64_t i) const {
    if (static_cast<size_t>(i) >= view_.size()) refuse_element(i, view_.size());
    return view_[static_cast<size_t>(i)];
  }
  auto begin() const { return view_.begin(); }
  auto end() const { return view_.end(); }

 private:
  Tensor source_;  // keeps a view alive
  std::vector<C> copy_;
  std::span<const C> view_;
};

// A zeroed array with an element for each of the shape's. Throws Error{OutOfMemory} beyond the run's limit.
template <class C>
std::vector<C> make_buffer(const KernelContext& context, const Shape& shape) {
  return std::vector<C>(static_cast<size_t>(context.checked_count(dtype_of<C>, shape)));
}

// The tensor of that dtype with those values: floats rounded to nearest even, integers wrapped.
template <class C>
Tensor to_tensor(DType dtype, Shape shape, std::span<const C> values);
template <class C>
Tensor to_tensor(DType dtype, Shape shape, const std::vector<C>& values) {
  return to_tensor(dtype, std::move(shape), std::span<const C>(values));
}

// The values of an integer tensor that an operator takes as a parameter: axes, shapes, counts.
std::vector<int64_t> int_values(const Tensor& tensor);
// The single value of such a tensor. Fails, naming the node, if there is not exactly one.
int64_t int_scalar(KernelContext& context, size_t input);

// Fails, naming the node, where the element types differ.
void check_same_dtype(const KernelContext& context, const Tensor& a, const Tensor& b);

// In [0, rank); fails, naming the node, outside [-rank, rank).
int64_t normalize_axis(const KernelContext& context, int64_t axis, int64_t rank);
// The same for several, sorted, without repetition.
std::vector<int64_t> normalize_axes(const KernelContext& context, std::vector<int64_t> axes, int64_t rank);

// Axes given as the attribute up to some version and as an input from there on. Nothing where neither is
// given.
std::optional<std::vector<int64_t>> ints_from(KernelContext& context, const std::string& attribute,
                                              size_t input);

}  // namespace quern::runtime::reference
