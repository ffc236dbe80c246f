// A tensor seen as rows along one of its axes.
#pragma once

#include "ir/tensor.h"

namespace quern::runtime::reference {

// Element i of row k, rows in row-major order of the other axes, lies at at(k, i).
struct AxisLayout {
  int64_t outer = 1;
  int64_t length = 1;
  int64_t inner = 1;

  int64_t rows() const { return outer * inner; }
  int64_t at(int64_t row, int64_t i) const { return (row / inner * length + i) * inner + row % inner; }
};

// `axis` in [0, rank).
AxisLayout axis_layout(const Shape& shape, int64_t axis);

}  // namespace quern::runtime::reference
