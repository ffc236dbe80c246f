// NumPy's array files, .npy (format versions 1 to 3).
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "ir/tensor.h"

namespace quern::npy {

// Reads a .npy file; the tensor is a view of the mapped file where order, endianness and alignment allow.
// Read: bool, integers of 1 to 8 bytes, f2, f4, f8, of either endianness and memory order; text (S, U) as
// String; V2 as BF16 (what NumPy writes for ml_dtypes.bfloat16).
// Throws Error{Io}, Error{Corrupt} where the file is truncated or malformed, Error{Unsupported} for complex
// numbers, dates, objects and records.
Tensor read(const std::filesystem::path& path);

// The same from memory that `owner` keeps alive; `name` is for messages.
Tensor parse(std::span<const std::byte> bytes, std::shared_ptr<const void> owner, const std::string& name);

// Writes `tensor` so that NumPy without extensions reads it: BF16 as its bits in u2, f8 and f4 formats as
// their bits in u1, i4, i2, u4 and u2 codes widened to i1 and u1, strings as U. Atomic. Throws Error{Io}.
void write(const std::filesystem::path& path, const Tensor& tensor);

// The two parts of such a file: the header with its padding, and the elements. The elements share the bytes
// of `tensor` where the file holds the same.
struct Parts {
  std::string header;
  Tensor elements;  // U8, I8 or the dtype of the tensor, with its shape; raw bytes are the contents
};
Parts to_parts(const Tensor& tensor);

}  // namespace quern::npy
