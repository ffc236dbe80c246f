// Tensors over bytes that come from a file.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "ir/tensor.h"

namespace quern {

// A tensor of `dtype` and `shape` over `bytes`, which must be exactly as many as it needs and which `owner`
// keeps alive. A view, without reading them, where the start is aligned to the element size; a copy
// otherwise. Bool elements are read, since anything but 0 and 1 in one would be undefined behaviour later.
// Throws Error{InvalidModel} on a wrong number of bytes, Error{Corrupt} on a Bool element of another value.
Tensor tensor_from_file_bytes(DType dtype, Shape shape, std::shared_ptr<const void> owner,
                              std::span<const std::byte> bytes);

// The same as a copy.
Tensor tensor_from_copied_bytes(DType dtype, Shape shape, std::span<const std::byte> bytes);

// Lets the system take back the memory of a tensor that is a view of a MappedFile; without effect on others.
void drop_mapped_pages(const Tensor& tensor);

// Throws Error{Corrupt} where a byte is neither 0 nor 1.
void check_bools(std::span<const std::byte> bytes);

}  // namespace quern
