// Four floats at a time, with the language extension of GCC and Clang: compilers do not reorder
// floating-point sums and extremes by themselves.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace quern::vectors {

using Floats = float __attribute__((vector_size(16)));
using Ints = int32_t __attribute__((vector_size(16)));
inline constexpr size_t kWidth = 4;

inline Floats load(const float* from) {
  Floats value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// The last, incomplete vector of a segment, filled up with zeros: they have no error and do not widen a
// range.
inline Floats load_tail(const float* from, size_t count) {
  Floats value{};
  std::memcpy(&value, from, count * sizeof(float));
  return value;
}

inline Floats splat(float value) {
  return Floats{value, value, value, value};
}

// body(first index, vector) for all of `values`.
template <class Body>
void for_vectors(std::span<const float> values, const Body& body) {
  size_t i = 0;
  for (; i + kWidth <= values.size(); i += kWidth) body(i, load(values.data() + i));
  if (i < values.size()) body(i, load_tail(values.data() + i, values.size() - i));
}

// The vector at `i` of values, padded with zeros.
inline Floats load_at(std::span<const float> values, size_t i) {
  if (i + kWidth <= values.size()) return load(values.data() + i);
  return load_tail(values.data() + i, values.size() - i);
}

inline float sum(const Floats& x) {
  return (x[0] + x[1]) + (x[2] + x[3]);
}
inline float largest(const Floats& x) {
  return std::max(std::max(x[0], x[1]), std::max(x[2], x[3]));
}

}  // namespace quern::vectors
