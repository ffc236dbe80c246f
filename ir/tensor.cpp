#include "ir/tensor.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "ir/float_types.h"

namespace quern {
namespace {

constexpr size_t kAlignment = 64;

std::shared_ptr<std::byte> allocate_zeroed(int64_t bytes) {
  const size_t padded = (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, std::max(padded, kAlignment));
  if (memory == nullptr) throw_error(ErrorCode::OutOfMemory, "no memory for a tensor of ", bytes, " bytes");
  std::memset(memory, 0, std::max(padded, kAlignment));
  return {static_cast<std::byte*>(memory), [](std::byte* p) { std::free(p); }};
}

// Reads `bits` bits (1 to 8, a divisor of 8) of packed element i.
uint8_t packed_element(const std::byte* data, int64_t i, int bits) {
  const int64_t per_byte = 8 / bits;
  const auto byte = static_cast<uint8_t>(data[i / per_byte]);
  return static_cast<uint8_t>((byte >> ((i % per_byte) * bits)) & ((1 << bits) - 1));
}

void set_packed_element(std::byte* data, int64_t i, int bits, uint8_t value) {
  const int64_t per_byte = 8 / bits;
  const int shift = static_cast<int>(i % per_byte) * bits;
  const auto mask = static_cast<uint8_t>(((1 << bits) - 1) << shift);
  auto byte = static_cast<uint8_t>(data[i / per_byte]);
  byte = static_cast<uint8_t>((byte & ~mask) | ((value << shift) & mask));
  data[i / per_byte] = static_cast<std::byte>(byte);
}

int sign_extend(uint8_t value, int bits) {
  const int sign = 1 << (bits - 1);
  return (value ^ sign) - sign;
}

template <class T>
T load(const std::byte* data, int64_t i) {
  T value;
  std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class T>
void store(std::byte* data, int64_t i, T value) {
  std::memcpy(data + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

// The least and greatest value of an integer dtype, as doubles (i64 and u64 rounded to what a double holds).
std::pair<double, double> integer_range(DType dtype) {
  const int bits = bit_width(dtype);
  if (is_signed_integer(dtype)) return {-std::ldexp(1.0, bits - 1), std::ldexp(1.0, bits - 1) - 1};
  return {0.0, std::ldexp(1.0, bits) - 1};
}

// Truncation as ONNX Cast of a float to an integer; out-of-range values wrap for narrow types as C++ through
// i64 does.
int64_t truncate(double value) {
  if (std::isnan(value)) return 0;
  if (value >= 9.2233720368547758e18) return std::numeric_limits<int64_t>::max();
  if (value <= -9.2233720368547758e18) return std::numeric_limits<int64_t>::min();
  return static_cast<int64_t>(value);
}

}  // namespace

int64_t element_count(const Shape& shape) {
  int64_t count = 1;
  bool empty = false;
  for (const int64_t dim : shape) {
    if (dim < 0) throw_error(ErrorCode::InvalidModel, "negative dimension in shape ", to_string(shape));
    empty = empty || dim == 0;
  }
  if (empty) return 0;
  for (const int64_t dim : shape) {
    if (__builtin_mul_overflow(count, dim, &count)) {
      throw_error(ErrorCode::InvalidModel, "shape ", to_string(shape), " has too many elements");
    }
  }
  return count;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

Shape strides_of(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

Shape broadcast_shapes(const Shape& a, const Shape& b) {
  const size_t rank = std::max(a.size(), b.size());
  Shape out(rank, 1);
  for (size_t i = 0; i < rank; ++i) {
    const int64_t da = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t db = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (da != db && da != 1 && db != 1) {
      throw_error(ErrorCode::InvalidModel, "shapes ", to_string(a), " and ", to_string(b),
                  " do not broadcast");
    }
    out[rank - 1 - i] = da == 1 ? db : da;
  }
  return out;
}

Tensor Tensor::zeros(DType dtype, Shape shape) {
  Tensor tensor;
  tensor.dtype_ = dtype;
  tensor.count_ = element_count(shape);
  tensor.shape_ = std::move(shape);
  if (dtype == DType::String) {
    tensor.strings_ = std::make_shared<std::vector<std::string>>(static_cast<size_t>(tensor.count_));
    return tensor;
  }
  tensor.bytes_ = quern::byte_size(dtype, tensor.count_);
  std::shared_ptr<std::byte> memory = allocate_zeroed(tensor.bytes_);
  tensor.data_ = memory.get();
  tensor.owner_ = std::move(memory);
  return tensor;
}

Tensor Tensor::view(DType dtype, Shape shape, std::shared_ptr<const void> owner, const std::byte* data,
                    int64_t bytes) {
  Tensor tensor;
  tensor.dtype_ = dtype;
  tensor.count_ = element_count(shape);
  tensor.bytes_ = quern::byte_size(dtype, tensor.count_);
  if (bytes < tensor.bytes_) {
    throw_error(ErrorCode::InvalidModel, "a tensor of shape ", to_string(shape), " and type ",
                quern::to_string(dtype), " needs ", tensor.bytes_, " bytes, but only ", bytes, " are there");
  }
  tensor.shape_ = std::move(shape);
  tensor.view_ = true;
  tensor.owner_ = std::move(owner);
  tensor.data_ = data;
  return tensor;
}

Tensor Tensor::from_strings(Shape shape, std::vector<std::string> values) {
  Tensor tensor = zeros(DType::String, std::move(shape));
  if (tensor.count_ != static_cast<int64_t>(values.size())) {
    throw_error(ErrorCode::InvalidModel, values.size(), " strings given for shape ",
                to_string(tensor.shape_));
  }
  tensor.strings_ = std::make_shared<std::vector<std::string>>(std::move(values));
  return tensor;
}

std::byte* Tensor::mutable_bytes() {
  if (view_ || owner_.use_count() != 1) {
    std::shared_ptr<std::byte> memory = allocate_zeroed(bytes_);
    if (bytes_ != 0) std::memcpy(memory.get(), data_, static_cast<size_t>(bytes_));
    data_ = memory.get();
    owner_ = std::move(memory);
    view_ = false;
  }
  return const_cast<std::byte*>(data_);
}

const std::vector<std::string>& Tensor::strings() const {
  if (!strings_) throw_error(ErrorCode::Internal, "not a tensor of strings");
  return *strings_;
}

void Tensor::check_access(DType wanted, size_t width) const {
  if (dtype_ == wanted) return;
  const int bits = bit_width(dtype_);
  if (wanted == DType::U8 && bits > 0 && bits <= 8) return;
  if (wanted == DType::U16 && bits == 16) return;
  (void)width;
  throw_error(ErrorCode::Internal, "elements of type ", quern::to_string(dtype_), " read as ",
              quern::to_string(wanted));
}

namespace {

// Shapes that come from a file need not fit one another; a kernel that trusts them must not read elsewhere.
void check_index(int64_t i, const Tensor& tensor) {
  if (i < 0 || i >= tensor.size()) {
    throw_error(ErrorCode::Internal, "element ", i, " of a tensor of shape ", to_string(tensor.shape()));
  }
}

}  // namespace

double Tensor::at(int64_t i) const {
  check_index(i, *this);
  switch (dtype_) {
    case DType::F32:
      return load<float>(data_, i);
    case DType::F64:
      return load<double>(data_, i);
    case DType::F16:
      return f16_to_f32(load<uint16_t>(data_, i));
    case DType::BF16:
      return bf16_to_f32(load<uint16_t>(data_, i));
    case DType::F8E4M3:
    case DType::F8E4M3FNUZ:
    case DType::F8E5M2:
    case DType::F8E5M2FNUZ:
    case DType::F8E8M0:
      return narrow_to_f32(load<uint8_t>(data_, i), dtype_);
    case DType::F4E2M1:
      return narrow_to_f32(packed_element(data_, i, 4), dtype_);
    case DType::U64:
      return static_cast<double>(load<uint64_t>(data_, i));
    default:
      return static_cast<double>(int_at(i));
  }
}

int64_t Tensor::int_at(int64_t i) const {
  check_index(i, *this);
  switch (dtype_) {
    case DType::I64:
      return load<int64_t>(data_, i);
    case DType::I32:
      return load<int32_t>(data_, i);
    case DType::I16:
      return load<int16_t>(data_, i);
    case DType::I8:
      return load<int8_t>(data_, i);
    case DType::U64:
      return static_cast<int64_t>(load<uint64_t>(data_, i));
    case DType::U32:
      return load<uint32_t>(data_, i);
    case DType::U16:
      return load<uint16_t>(data_, i);
    case DType::U8:
    case DType::Bool:
      return load<uint8_t>(data_, i);
    case DType::I4:
    case DType::I2:
      return sign_extend(packed_element(data_, i, bit_width(dtype_)), bit_width(dtype_));
    case DType::U4:
    case DType::U2:
      return packed_element(data_, i, bit_width(dtype_));
    case DType::Undefined:
    case DType::String:
      throw_error(ErrorCode::Internal, "element of a tensor of type ", quern::to_string(dtype_),
                  " read as a number");
    default:
      return truncate(at(i));
  }
}

void Tensor::set(int64_t i, double value) {
  std::byte* data = mutable_bytes();
  switch (dtype_) {
    case DType::F32:
      return store(data, i, static_cast<float>(value));
    case DType::F64:
      return store(data, i, value);
    case DType::F16:
      return store(data, i, f32_to_f16(static_cast<float>(value)));
    case DType::BF16:
      return store(data, i, f32_to_bf16(static_cast<float>(value)));
    case DType::F8E4M3:
    case DType::F8E4M3FNUZ:
    case DType::F8E5M2:
    case DType::F8E5M2FNUZ:
    case DType::F8E8M0:
      return store(data, i, f32_to_narrow(static_cast<float>(value), dtype_));
    case DType::F4E2M1:
      return set_packed_element(data, i, 4, f32_to_narrow(static_cast<float>(value), dtype_));
    case DType::Bool:
      return store<uint8_t>(data, i, value != 0.0);
    default: {
      const auto [low, high] = integer_range(dtype_);
      if (dtype_ == DType::U64 && value >= 9.2233720368547758e18) {
        return store(data, i, value >= high ? ~uint64_t{0} : static_cast<uint64_t>(value));
      }
      set_int(i, truncate(std::nearbyint(std::clamp(std::isnan(value) ? 0.0 : value, low, high))));
    }
  }
}

void Tensor::set_int(int64_t i, int64_t value) {
  std::byte* data = mutable_bytes();
  switch (dtype_) {
    case DType::I64:
    case DType::U64:
      return store(data, i, value);
    case DType::I32:
    case DType::U32:
      return store(data, i, static_cast<int32_t>(value));
    case DType::I16:
    case DType::U16:
      return store(data, i, static_cast<int16_t>(value));
    case DType::I8:
    case DType::U8:
      return store(data, i, static_cast<int8_t>(value));
    case DType::Bool:
      return store<uint8_t>(data, i, value != 0);
    case DType::I4:
    case DType::U4:
    case DType::I2:
    case DType::U2:
      return set_packed_element(data, i, bit_width(dtype_), static_cast<uint8_t>(value));
    default:
      return set(i, static_cast<double>(value));
  }
}

std::vector<float> Tensor::to_floats() const {
  std::vector<float> values(static_cast<size_t>(count_));
  if (dtype_ == DType::F32) {
    if (count_ != 0) std::memcpy(values.data(), data_, static_cast<size_t>(bytes_));
    return values;
  }
  for (int64_t i = 0; i < count_; ++i) values[static_cast<size_t>(i)] = static_cast<float>(at(i));
  return values;
}

std::vector<int64_t> Tensor::to_ints() const {
  if (is_floating(dtype_)) {
    throw_error(ErrorCode::Internal, "elements of type ", quern::to_string(dtype_), " read as integers");
  }
  std::vector<int64_t> values(static_cast<size_t>(count_));
  for (int64_t i = 0; i < count_; ++i) values[static_cast<size_t>(i)] = int_at(i);
  return values;
}

Tensor Tensor::reshaped(Shape shape) const {
  if (element_count(shape) != count_) {
    throw_error(ErrorCode::InvalidModel, "shape ", to_string(shape_), " cannot become ", to_string(shape));
  }
  Tensor tensor = *this;
  tensor.shape_ = std::move(shape);
  return tensor;
}

Tensor Tensor::cast(DType dtype) const {
  if (dtype == dtype_) return *this;
  Tensor out = zeros(dtype, shape_);
  const bool from_float = is_floating(dtype_) || dtype_ == DType::F8E8M0;
  const bool to_integer = is_integer(dtype);
  for (int64_t i = 0; i < count_; ++i) {
    if (from_float && to_integer) {
      out.set_int(i, truncate(at(i)));
    } else if (from_float || dtype == DType::F32 || dtype == DType::F64) {
      out.set(i, at(i));
    } else {
      out.set_int(i, int_at(i));
    }
  }
  return out;
}

bool identical(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  if (a.dtype() == DType::String) return a.strings() == b.strings();
  return a.byte_size() == 0 || std::memcmp(a.bytes(), b.bytes(), static_cast<size_t>(a.byte_size())) == 0;
}

}  // namespace quern
