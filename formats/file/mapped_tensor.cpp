#include "formats/file/mapped_tensor.h"

#include <algorithm>
#include <cstring>

#include "formats/file/mapped_file.h"
#include "ir/error.h"

namespace quern {

namespace {

void check_bytes(DType dtype, const Shape& shape, std::span<const std::byte> bytes) {
  const int64_t wanted = byte_size(dtype, element_count(shape));
  if (static_cast<uint64_t>(wanted) != bytes.size()) {
    throw_error(ErrorCode::InvalidModel, "shape ", to_string(shape), " of ", to_string(dtype), " takes ",
                wanted, " bytes, but ", bytes.size(), " are given");
  }
  if (dtype == DType::Bool) check_bools(bytes);
}

}  // namespace

Tensor tensor_from_copied_bytes(DType dtype, Shape shape, std::span<const std::byte> bytes) {
  check_bytes(dtype, shape, bytes);
  Tensor copy = Tensor::zeros(dtype, std::move(shape));
  if (!bytes.empty()) std::memcpy(copy.mutable_bytes(), bytes.data(), bytes.size());
  return copy;
}

Tensor tensor_from_file_bytes(DType dtype, Shape shape, std::shared_ptr<const void> owner,
                              std::span<const std::byte> bytes) {
  const auto width = static_cast<uintptr_t>(std::max(1, bit_width(dtype) / 8));
  if (bytes.empty() || reinterpret_cast<uintptr_t>(bytes.data()) % width != 0) {
    return tensor_from_copied_bytes(dtype, std::move(shape), bytes);
  }
  check_bytes(dtype, shape, bytes);
  const auto size = static_cast<int64_t>(bytes.size());
  return Tensor::view(dtype, std::move(shape), std::move(owner), bytes.data(), size);
}

void drop_mapped_pages(const Tensor& tensor) {
  if (tensor.is_view()) {
    MappedFile::drop_pages_if_mapped({tensor.bytes(), static_cast<size_t>(tensor.byte_size())});
  }
}

void check_bools(std::span<const std::byte> bytes) {
  const auto bad = std::find_if(bytes.begin(), bytes.end(), [](std::byte b) { return b > std::byte{1}; });
  if (bad != bytes.end()) {
    throw_error(ErrorCode::Corrupt, "bool element ", bad - bytes.begin(), " is ", static_cast<int>(*bad),
                "; only 0 and 1 are allowed");
  }
}

}  // namespace quern
