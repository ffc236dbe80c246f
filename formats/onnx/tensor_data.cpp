#include "formats/onnx/tensor_data.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

#include "formats/file/mapped_tensor.h"
#include "formats/onnx/wire_scan.h"
#include "ir/error.h"

namespace quern::onnx_format {
namespace {

static_assert(std::endian::native == std::endian::little, "raw_data is little-endian");

Shape shape_of(const onnx::TensorProto& proto) {
  Shape shape(proto.dims().begin(), proto.dims().end());
  element_count(shape);  // refuses negative and overflowing ones
  return shape;
}

uint64_t parse_unsigned(const std::string& key, const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw_error(ErrorCode::InvalidModel, "the ", key, " of its external data, ", quoted(text),
                ", is no number");
  }
  return value;
}

ExternalLocation external_location(const onnx::TensorProto& proto) {
  ExternalLocation where;
  for (const auto& entry : proto.external_data()) {
    if (entry.key() == "location") where.location = entry.value();
    if (entry.key() == "offset") where.offset = parse_unsigned("offset", entry.value());
    if (entry.key() == "length") where.length = parse_unsigned("length", entry.value());
  }
  return where;
}

[[noreturn]] void wrong_count(const Shape& shape, int64_t found) {
  throw_error(ErrorCode::InvalidModel, "shape ", to_string(shape), " takes ", element_count(shape),
              " elements, but ", found, " are given");
}

// Elements of a typed field, narrowed to T.
template <class T, class Field>
void copy_narrowed(const Field& field, Tensor& tensor) {
  auto* out = reinterpret_cast<T*>(tensor.mutable_bytes());
  std::transform(field.begin(), field.end(), out, [](auto value) { return static_cast<T>(value); });
}

// How many entries of `int32_data` hold a tensor: one per element, or one per byte of packed elements.
int64_t int32_entries(DType dtype, int64_t count) {
  return is_sub_byte(dtype) ? byte_size(dtype, count) : count;
}

template <class Field>
void check_count(const Field& field, int64_t wanted, const Shape& shape) {
  if (field.size() != wanted) wrong_count(shape, field.size());
}

Tensor from_int32_data(const onnx::TensorProto& proto, DType dtype, const Shape& shape) {
  Tensor tensor = Tensor::zeros(dtype, shape);
  const auto& data = proto.int32_data();
  switch (bit_width(dtype)) {
    case 32:
      copy_narrowed<int32_t>(data, tensor);
      break;
    case 16:
      copy_narrowed<uint16_t>(data, tensor);
      break;
    default:
      copy_narrowed<uint8_t>(data, tensor);
      break;
  }
  if (dtype == DType::Bool) check_bools({tensor.bytes(), static_cast<size_t>(tensor.byte_size())});
  return tensor;
}

template <class T, class Field>
Tensor from_field(const Field& field, DType dtype, const Shape& shape) {
  check_count(field, element_count(shape), shape);
  Tensor tensor = Tensor::zeros(dtype, shape);
  copy_narrowed<T>(field, tensor);
  return tensor;
}

// The fields that onnx.proto assigns to each element type. Counts are checked before memory is taken.
Tensor from_typed_fields(const onnx::TensorProto& proto, DType dtype, const Shape& shape) {
  switch (dtype) {
    case DType::F32:
      return from_field<float>(proto.float_data(), dtype, shape);
    case DType::F64:
      return from_field<double>(proto.double_data(), dtype, shape);
    case DType::I64:
      return from_field<int64_t>(proto.int64_data(), dtype, shape);
    case DType::U64:
      return from_field<uint64_t>(proto.uint64_data(), dtype, shape);
    case DType::U32:
      return from_field<uint32_t>(proto.uint64_data(), dtype, shape);
    case DType::String: {
      check_count(proto.string_data(), element_count(shape), shape);
      return Tensor::from_strings(shape, {proto.string_data().begin(), proto.string_data().end()});
    }
    default:
      check_count(proto.int32_data(), int32_entries(dtype, element_count(shape)), shape);
      return from_int32_data(proto, dtype, shape);
  }
}

void check_sparse(const Shape& shape, const Tensor& values, const Tensor& indices) {
  const int64_t stored = values.size();
  const auto rank = static_cast<int64_t>(shape.size());
  const bool fits = indices.shape() == Shape{stored} || indices.shape() == Shape{stored, rank};
  if (values.rank() != 1 || indices.dtype() != DType::I64 || !fits) {
    throw_error(ErrorCode::InvalidModel,
                "a sparse tensor needs values [n] and int64 indices [n] or [n, rank], not ",
                to_string(values.shape()), " and ", to_string(indices.shape()));
  }
  if (values.dtype() == DType::String || bit_width(values.dtype()) < 8) {
    throw_error(ErrorCode::Unsupported, "sparse tensors of ", to_string(values.dtype()),
                " are not supported");
  }
  const int64_t bytes = byte_size(values.dtype(), element_count(shape));
  constexpr int64_t kFree = int64_t{64} << 20;
  constexpr int64_t kMostPerStored = 1000;
  if (bytes > kFree && bytes / kMostPerStored > values.byte_size()) {
    throw_error(ErrorCode::Unsupported, "a sparse tensor of shape ", to_string(shape), " with ", stored,
                " stored elements is too large to be made dense");
  }
}

// Where stored element `i` goes, in row-major order. Indices are linear, or one per axis.
int64_t sparse_position(const Shape& shape, const Tensor& indices, int64_t i) {
  const bool linear = indices.rank() == 1;
  const Shape extents = linear ? Shape{element_count(shape)} : shape;
  int64_t position = 0;
  for (size_t axis = 0; axis < extents.size(); ++axis) {
    const int64_t index =
        indices.int_at(i * static_cast<int64_t>(extents.size()) + static_cast<int64_t>(axis));
    if (index < 0 || index >= extents[axis]) {
      throw_error(ErrorCode::InvalidModel, "index ", index, " of a sparse tensor lies outside its shape ",
                  to_string(shape));
    }
    position = position * extents[axis] + index;
  }
  return position;
}

}  // namespace

Tensor TensorReader::read(const onnx::TensorProto& proto) const {
  const DType dtype = dtype_from_onnx(proto.data_type());
  if (dtype == DType::Undefined) {
    throw_error(proto.data_type() == 0 ? ErrorCode::InvalidModel : ErrorCode::Unsupported, "elements of ",
                proto.data_type() == 0 ? "no type" : "type " + onnx_type_name(proto.data_type()),
                " are not supported");
  }
  if (proto.has_segment()) throw_error(ErrorCode::Unsupported, "tensors in segments are not supported");
  const Shape shape = shape_of(proto);
  if (proto.data_location() == onnx::TensorProto::EXTERNAL) {
    const auto wanted = static_cast<uint64_t>(byte_size(dtype, element_count(shape)));
    const auto [file, bytes] = external_.find(external_location(proto), wanted);
    return tensor_from_file_bytes(dtype, shape, file, bytes);
  }
  const auto& unknown = proto.unknown_fields();
  for (int i = 0; i < unknown.field_count(); ++i) {
    if (unknown.field(i).number() != kPayloadField) continue;
    return tensor_from_file_bytes(dtype, shape, owner_, payloads_.at(unknown.field(i).varint()));
  }
  if (!proto.has_raw_data()) return from_typed_fields(proto, dtype, shape);
  return tensor_from_copied_bytes(dtype, shape, std::as_bytes(std::span(proto.raw_data())));
}

Tensor TensorReader::read(const onnx::SparseTensorProto& proto) const {
  const Shape shape(proto.dims().begin(), proto.dims().end());
  const Tensor values = read(proto.values());
  const Tensor indices = read(proto.indices());
  check_sparse(shape, values, indices);
  Tensor dense = Tensor::zeros(values.dtype(), shape);
  const auto width = static_cast<size_t>(bit_width(values.dtype()) / 8);
  for (int64_t i = 0; i < values.size(); ++i) {
    const auto position = static_cast<size_t>(sparse_position(shape, indices, i));
    std::memcpy(dense.mutable_bytes() + position * width, values.bytes() + static_cast<size_t>(i) * width,
                width);
  }
  return dense;
}

onnx::TensorProto tensor_header_to_onnx(const Tensor& tensor) {
  onnx::TensorProto proto;
  proto.set_data_type(dtype_to_onnx(tensor.dtype()));
  for (const int64_t dim : tensor.shape()) proto.add_dims(dim);
  return proto;
}

onnx::TensorProto tensor_to_onnx(const Tensor& tensor) {
  onnx::TensorProto proto = tensor_header_to_onnx(tensor);
  if (tensor.dtype() == DType::String) {
    for (const std::string& text : tensor.strings()) proto.add_string_data(text);
  } else {
    proto.set_raw_data(tensor.bytes(), static_cast<size_t>(tensor.byte_size()));
  }
  return proto;
}

}  // namespace quern::onnx_format
