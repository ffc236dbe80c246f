// A constant matrix as a window on the tensor it is stored in, without moving a number.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace quern::passes {

// Row-major or not, of any floating type; the storage may be a mapped file larger than memory. Cheap to copy.
class WeightView {
 public:
  // A constant tensor of floats, or what Identity, Transpose, Slice, Split, Squeeze, Unsqueeze, Reshape,
  // Flatten and Cast between floating types make of one, as long as it is a window with strides; nothing for
  // anything else.
  static std::optional<WeightView> of(const Value& value);
  explicit WeightView(Tensor tensor);
  // Of a matrix.
  WeightView transposed() const;

  const Shape& shape() const { return shape_; }
  const Tensor& storage() const { return storage_; }
  // The format whose numbers these are: of the storage, or narrower where a Cast rounds to F16 or BF16.
  DType precision() const { return precision_; }
  // The same window on the numbers as they are stored.
  WeightView without_rounding() const;
  int64_t rows() const { return shape_[0]; }
  int64_t cols() const { return shape_[1]; }

  // Rows first .. first + count - 1 of a matrix, row-major, rounded to precision() and widened; `out` has
  // count * cols() elements. Uses all processors for large blocks.
  void read_rows(int64_t first, int64_t count, std::span<float> out) const;
  // One element; slow.
  float at(int64_t row, int64_t col) const;

 private:
  WeightView() = default;
  std::optional<WeightView> apply(const Node& node, int output) const;
  std::optional<WeightView> transposed(const Node& node) const;
  std::optional<WeightView> sliced(const Node& node) const;
  std::optional<WeightView> split(const Node& node, int output) const;
  std::optional<WeightView> reshaped(const Node& node) const;
  std::optional<WeightView> cast(const Node& node) const;
  template <class Load>
  void read_tiles(int64_t first, int64_t count, float* out, const Load& load) const;
  void read_block(int64_t first, int64_t count, float* out) const;
  void round(std::span<float> values) const;

  Tensor storage_;
  int64_t offset_ = 0;  // elements
  Shape shape_;
  std::vector<int64_t> strides_;  // elements
  DType precision_ = DType::Undefined;
};

}  // namespace quern::passes
