// Frequencies from cosines and sines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/dtype.h"

namespace quern::passes {

struct CosSin {
  double cos = 1, sin = 0;
};
// By position, by rotated pair.
using Rotations = std::vector<std::vector<CosSin>>;

// What rounding does to a result of size 1.
double precision_of(DType dtype);

// Angle per position of each pair from its rotations at positions 1, 2, 4, ...: each halves the error of the
// one before, because the product of a float and a power of two is exact. The first angle must be within pi.
std::vector<double> unwrap(const Rotations& doublings, size_t pairs);

// What cosines and sines are multiplied with, on average.
double magnitude(const Rotations& rotations);

// Empty if the rotations at `positions` are those by position * inv_freq, times `scale`, to within rounding
// of angles in `precision`; else where they are not.
std::string check_rotations(const Rotations& rotations, const std::vector<int64_t>& positions,
                            const std::vector<float>& inv_freq, double scale, double precision);

}  // namespace quern::passes
