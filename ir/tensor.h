// A dense array of elements, with bytes that are owned, shared, or a view of memory that something else keeps
// alive (a mapped file).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/dtype.h"
#include "ir/error.h"

namespace quern {

using Shape = std::vector<int64_t>;

// The product of the dimensions; 1 for a scalar. Throws Error{InvalidModel} on a negative dimension or
// overflow.
int64_t element_count(const Shape& shape);
// "[2, 3]"
std::string to_string(const Shape& shape);
// Row-major strides in elements.
Shape strides_of(const Shape& shape);
// ONNX multidirectional broadcasting. Throws Error{InvalidModel} naming both shapes.
Shape broadcast_shapes(const Shape& a, const Shape& b);

// The DType of a C++ element type: dtype_of<float> == DType::F32. F16 and BF16 are not distinct C++ types
// here; their elements are read as uint16_t bits.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::F32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::F64;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::I64;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::I32;
};
template <>
struct DTypeOf<int16_t> {
  static constexpr DType value = DType::I16;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::I8;
};
template <>
struct DTypeOf<uint64_t> {
  static constexpr DType value = DType::U64;
};
template <>
struct DTypeOf<uint32_t> {
  static constexpr DType value = DType::U32;
};
template <>
struct DTypeOf<uint16_t> {
  static constexpr DType value = DType::U16;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::U8;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::Bool;
};
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

// Copies are shallow: they share the bytes. Writing goes through mutable_data(), which first makes the bytes
// this tensor's own (copy on write). Thread-safe as an int is: readers of one Tensor may run together.
// Elements narrower than a byte are packed along the whole row-major array, the first element in the low
// bits.
class Tensor {
 public:
  Tensor() = default;  // Undefined, shape [0]

  // Zero-filled, aligned to 64 bytes. Throws Error{OutOfMemory}.
  static Tensor zeros(DType dtype, Shape shape);
  // A tensor over `bytes` bytes that `owner` keeps alive. `bytes` must be at least byte_size():
  // Error{InvalidModel}.
  static Tensor view(DType dtype, Shape shape, std::shared_ptr<const void> owner, const std::byte* data,
                     int64_t bytes);
  template <class T>
  static Tensor from(Shape shape, std::span<const T> values);
  template <class T>
  static Tensor from(Shape shape, std::initializer_list<T> values) {
    return from<T>(std::move(shape), std::span<const T>(values.begin(), values.size()));
  }
  template <class T>
  static Tensor scalar(T value) {
    return from<T>(Shape{}, {value});
  }
  static Tensor from_strings(Shape shape, std::vector<std::string> values);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return static_cast<int>(shape_.size()); }
  int64_t dim(int axis) const { return shape_[static_cast<size_t>(axis < 0 ? axis + rank() : axis)]; }
  int64_t size() const { return count_; }       // elements
  int64_t byte_size() const { return bytes_; }  // of the packed elements
  bool defined() const { return dtype_ != DType::Undefined; }
  // Whether the bytes belong to a mapped file or another outside owner, not to the heap.
  bool is_view() const { return view_; }

  const std::byte* bytes() const { return data_; }
  std::byte* mutable_bytes();

  // The elements as T. T must have the width of the dtype and its kind; uint16_t also reads F16 and BF16,
  // uint8_t any dtype of 8 bits or fewer (then as packed bytes). Throws Error{Internal} on a mismatch.
  template <class T>
  std::span<const T> data() const {
    check_access(dtype_of<T>, sizeof(T));
    return {reinterpret_cast<const T*>(data_), static_cast<size_t>(bytes_) / sizeof(T)};
  }
  template <class T>
  std::span<T> mutable_data() {
    check_access(dtype_of<T>, sizeof(T));
    std::byte* data = mutable_bytes();
    return {reinterpret_cast<T*>(data), static_cast<size_t>(bytes_) / sizeof(T)};
  }
  const std::vector<std::string>& strings() const;

  // Element `i` in row-major order, of any numeric dtype, widened. Slow; for shapes, scalars and reference
  // code.
  double at(int64_t i) const;
  int64_t int_at(int64_t i) const;
  void set(int64_t i, double value);       // rounds to nearest even and saturates integers
  void set_int(int64_t i, int64_t value);  // wraps, as ONNX Cast between integers does

  // All elements, widened. to_ints() throws Error{Internal} for a floating dtype.
  std::vector<float> to_floats() const;
  std::vector<int64_t> to_ints() const;

  // The same bytes under another shape of equal element count: Error{InvalidModel} otherwise.
  Tensor reshaped(Shape shape) const;
  // Element-wise conversion to `dtype` with ONNX Cast semantics (float to integer truncates; narrow floats
  // saturate).
  Tensor cast(DType dtype) const;

 private:
  void check_access(DType wanted, size_t width) const;

  DType dtype_ = DType::Undefined;
  bool view_ = false;
  Shape shape_ = {0};
  int64_t count_ = 0;
  int64_t bytes_ = 0;
  std::shared_ptr<const void> owner_;
  const std::byte* data_ = nullptr;
  std::shared_ptr<const std::vector<std::string>> strings_;
};

// Same dtype, shape and bytes.
bool identical(const Tensor& a, const Tensor& b);

template <class T>
Tensor Tensor::from(Shape shape, std::span<const T> values) {
  Tensor tensor = zeros(dtype_of<T>, std::move(shape));
  if (tensor.size() != static_cast<int64_t>(values.size())) {
    throw_error(ErrorCode::Internal, values.size(), " values given for shape ", to_string(tensor.shape()));
  }
  std::copy(values.begin(), values.end(), tensor.template mutable_data<T>().begin());
  return tensor;
}

}  // namespace quern
