// The header of a .npy file.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "ir/tensor.h"

namespace quern::npy {

inline constexpr size_t kMaxRank = 64;  // NumPy's own bound

struct Header {
  std::string descr;           // "<f4": byte order, kind, item size
  bool fortran_order = false;  // the first axis varies fastest
  Shape shape;
  size_t size = 0;  // bytes before the first element
};

// Throws Error{Corrupt} on anything malformed, Error{Unsupported} for record types.
Header parse_header(std::span<const std::byte> bytes);

}  // namespace quern::npy
