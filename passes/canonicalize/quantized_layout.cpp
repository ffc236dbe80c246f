#include "passes/canonicalize/quantized_layout.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace quern::passes {
namespace {

DType unsigned_code(int bits) {
  return bits == 2 ? DType::U2 : bits == 4 ? DType::U4 : DType::U8;
}

// Another dtype over the same bytes.
Tensor reinterpreted(const Tensor& tensor, DType dtype, Shape shape) {
  const auto owner = std::make_shared<const Tensor>(tensor);
  return Tensor::view(dtype, std::move(shape), owner, owner->bytes(), owner->byte_size());
}

// `width` elements of each of `rows` rows, which are padded to whole bytes.
Tensor unpadded(const Tensor& bytes, int bits, int64_t rows, int64_t width) {
  const int64_t stride = bytes.size() / std::max<int64_t>(1, rows);
  const int64_t per_byte = 8 / bits;
  if (stride * rows != bytes.size() || stride * per_byte < width) {
    throw_error(ErrorCode::InvalidModel, bytes.size(), " bytes do not hold ", rows, " rows of ", width,
                " codes of ", bits, " bits");
  }
  if (stride * per_byte == width) return reinterpreted(bytes, unsigned_code(bits), {rows, width});
  Tensor tight = Tensor::zeros(unsigned_code(bits), {rows, width});
  const auto source = bytes.data<uint8_t>();
  const auto target = tight.mutable_data<uint8_t>();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; ++i) {
      const int code =
          source[static_cast<size_t>(r * stride + i / per_byte)] >> (i % per_byte * bits) & ((1 << bits) - 1);
      const int64_t at = r * width + i;
      target[static_cast<size_t>(at / per_byte)] |= static_cast<uint8_t>(code << (at % per_byte * bits));
    }
  }
  return tight;
}

Tensor as_scales(const Tensor& scales) {
  return scales.dtype() == DType::F32 || scales.dtype() == DType::F16 ? scales : scales.cast(DType::F32);
}

bool all_equal(const Tensor& tensor, double value) {
  for (int64_t i = 0; i < tensor.size(); ++i) {
    if (tensor.at(i) != value) return false;
  }
  return true;
}

bool is_code(DType dtype) {
  return dtype == DType::I8 || dtype == DType::U8 || dtype == DType::I4 || dtype == DType::U4 ||
         dtype == DType::I2 || dtype == DType::U2 || dtype == DType::F8E4M3 || dtype == DType::F8E5M2;
}

// What a symmetric scheme of that code means by zero.
double symmetric_zero(DType code) {
  return is_signed_integer(code) || !is_integer(code) ? 0 : std::ldexp(1.0, bit_width(code) - 1);
}

// Zero points that say what a symmetric scheme says anyway are dropped; missing ones that mean 0 of an
// unsigned code are written out.
void settle_zero_points(QuantizedTensor& tensor, const Tensor* given) {
  const double usual = symmetric_zero(tensor.scheme.code);
  if (given ? all_equal(*given, usual) : usual == 0) return;
  tensor.scheme.symmetric = false;
  tensor.zero_points = Tensor::zeros(tensor.scheme.code, tensor.scales.shape());
  if (given == nullptr) return;
  if (given->size() != 1) {
    tensor.zero_points = given->reshaped(tensor.scales.shape());
    return;
  }
  // One for all scales.
  for (int64_t i = 0; i < tensor.zero_points.size(); ++i) tensor.zero_points.set_int(i, given->int_at(0));
}

constexpr std::array<float, 16> kNf4 = {
    -1.0F,      -0.6961928F, -0.52507305F, -0.39491749F, -0.28444138F, -0.18477343F, -0.09105004F, 0.0F,
    0.0795803F, 0.1609302F,  0.2461123F,   0.33791524F,  0.44070983F,  0.562617F,    0.72295684F,  1.0F};
constexpr std::array<float, 16> kFp4 = {
    0.0F,  0.00520833F,  0.66666667F,  1.0F,  0.33333333F,  0.5F,  0.16666667F,  0.25F,
    -0.0F, -0.00520833F, -0.66666667F, -1.0F, -0.33333333F, -0.5F, -0.16666667F, -0.25F};

}  // namespace

QuantizedTensor from_nbits(const Tensor& codes, const Tensor& scales, const Tensor* zero_points, int64_t n,
                           int64_t k, int bits, int64_t block_size) {
  if ((bits != 2 && bits != 4 && bits != 8) || block_size < 1 || n < 1 || k < 1) {
    throw_error(ErrorCode::Unsupported, "weights of ", bits, " bits in blocks of ", block_size,
                " are not known");
  }
  const int64_t blocks = (k + block_size - 1) / block_size;
  QuantizedTensor tensor;
  tensor.scheme = {.code = unsigned_code(bits),
                   .symmetric = true,
                   .granularity = QuantScheme::Granularity::Group,
                   .axis = 1,
                   .group_size = block_size};
  tensor.codes = unpadded(codes.reshaped({codes.size()}), bits, n, k);
  tensor.scales = as_scales(scales).reshaped({n, blocks});
  if (zero_points != nullptr) {
    Tensor points;
    if (is_floating(zero_points->dtype())) {
      points = Tensor::zeros(tensor.scheme.code, {n, blocks});
      for (int64_t i = 0; i < points.size(); ++i) {
        const double point = zero_points->at(i);
        if (point != std::floor(point))
          throw_error(ErrorCode::Unsupported, "a zero point is ", point, ", which is no integer");
        points.set(i, point);
      }
    } else {
      points = unpadded(zero_points->reshaped({zero_points->size()}), bits, n, blocks);
    }
    settle_zero_points(tensor, &points);
  }
  tensor.check();
  return tensor;
}

bool has_fractions(const Tensor& zero_points) {
  if (!is_floating(zero_points.dtype())) return false;
  for (int64_t i = 0; i < zero_points.size(); ++i) {
    if (zero_points.at(i) != std::floor(zero_points.at(i))) return true;
  }
  return false;
}

Tensor floats_from_nbits(const Tensor& codes, const Tensor& scales, const Tensor& zero_points, int64_t n,
                         int64_t k, int bits, int64_t block_size) {
  const QuantizedTensor coded = from_nbits(codes, scales, nullptr, n, k, bits, block_size);
  const int64_t blocks = (k + block_size - 1) / block_size;
  if (zero_points.size() != n * blocks) {
    throw_error(ErrorCode::InvalidModel, zero_points.size(), " zero points for ", n, " rows of ", blocks,
                " blocks");
  }
  const std::vector<float> steps = coded.scales.to_floats(), points = zero_points.to_floats();
  Tensor tensor = Tensor::zeros(DType::F32, {n, k});
  const auto target = tensor.mutable_data<float>();
  for (int64_t i = 0; i < n * k; ++i) {
    const auto block = static_cast<size_t>(i / k * blocks + i % k / block_size);
    target[static_cast<size_t>(i)] =
        (static_cast<float>(coded.codes.int_at(i)) - points[block]) * steps[block];
  }
  return tensor;
}

Tensor from_bnb4(const Tensor& codes, const Tensor& largest, int64_t n, int64_t k, int64_t block_size,
                 int64_t quant_type) {
  if (n < 1 || k < 1 || block_size < 1 || codes.size() < (n * k + 1) / 2 ||
      largest.size() < (n * k + block_size - 1) / block_size) {
    throw_error(ErrorCode::InvalidModel, "the codes or scales are too few for a weight of ", n, " by ", k);
  }
  Tensor tensor = Tensor::zeros(DType::F32, {n, k});
  const auto source = codes.data<uint8_t>();
  const auto target = tensor.mutable_data<float>();
  const std::vector<float> scales = largest.to_floats();
  for (int64_t i = 0; i < n * k; ++i) {
    const uint8_t both = source[static_cast<size_t>(i / 2)];
    const size_t code = i % 2 == 0 ? both >> 4 : both & 15;
    target[static_cast<size_t>(i)] =
        (quant_type == 1 ? kNf4 : kFp4)[code] * scales[static_cast<size_t>(i / block_size)];
  }
  return tensor;
}

std::optional<QuantizedTensor> from_qdq(const Tensor& codes, const Tensor& scales, const Tensor* zero_points,
                                        int64_t axis, int64_t block_size) {
  if (codes.rank() < 2 || !is_code(codes.dtype())) return std::nullopt;
  if (axis < 0) axis += codes.rank();
  if (axis < 0 || axis >= codes.rank()) return std::nullopt;
  QuantizedTensor tensor;
  tensor.codes = codes;
  tensor.scales = as_scales(scales);
  tensor.scheme = {.code = codes.dtype(), .symmetric = true, .axis = static_cast<int>(axis)};
  if (scales.size() == 1 && scales.rank() < 2) {
    tensor.scheme.granularity = QuantScheme::Granularity::Tensor;
    tensor.scheme.axis = 0;
    tensor.scales = tensor.scales.reshaped({});
  } else if (scales.rank() == 1 && block_size == 0 && scales.size() == codes.dim(static_cast<int>(axis))) {
    tensor.scheme.granularity = QuantScheme::Granularity::Channel;
  } else if (scales.rank() == codes.rank() && block_size > 0) {
    tensor.scheme.granularity = QuantScheme::Granularity::Group;
    tensor.scheme.group_size = block_size;
  } else {
    return std::nullopt;
  }
  settle_zero_points(tensor, zero_points);
  tensor.check();
  return tensor;
}

namespace {

// Of the first axis.
Tensor rows_of(const Tensor& tensor, const std::vector<int64_t>& order) {
  if (!tensor.defined()) return {};
  Shape shape = tensor.shape();
  const int64_t width = tensor.size() / std::max<int64_t>(1, shape[0]);
  shape[0] = static_cast<int64_t>(order.size());
  Tensor result = Tensor::zeros(tensor.dtype(), shape);
  int64_t at = 0;
  for (const int64_t row : order) {
    for (int64_t i = 0; i < width; ++i, ++at) {
      if (is_floating(tensor.dtype())) {
        result.set(at, tensor.at(row * width + i));
      } else {
        result.set_int(at, tensor.int_at(row * width + i));
      }
    }
  }
  return result;
}

}  // namespace

std::optional<QuantizedTensor> rows_of(const QuantizedTensor& matrix, const std::vector<int64_t>& order) {
  using Granularity = QuantScheme::Granularity;
  const QuantScheme& scheme = matrix.scheme;
  if (scheme.granularity == Granularity::Group && scheme.axis != 1) return std::nullopt;
  QuantizedTensor result = matrix;
  result.codes = rows_of(matrix.codes, order);
  const bool shared = scheme.granularity == Granularity::Tensor ||
                      (scheme.granularity == Granularity::Channel && scheme.axis != 0);
  if (!shared) {
    result.scales = rows_of(matrix.scales, order);
    result.zero_points = rows_of(matrix.zero_points, order);
  }
  return result;
}

Tensor transposed(const Tensor& matrix) {
  if (matrix.rank() != 2) return matrix;
  const int64_t rows = matrix.dim(0), cols = matrix.dim(1);
  Tensor result = Tensor::zeros(matrix.dtype(), {cols, rows});
  if (is_sub_byte(matrix.dtype())) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) result.set_int(c * rows + r, matrix.int_at(r * cols + c));
    }
    return result;
  }
  const int64_t width = bit_width(matrix.dtype()) / 8;
  const std::byte* source = matrix.bytes();
  std::byte* target = result.mutable_bytes();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      std::copy_n(source + (r * cols + c) * width, width, target + (c * rows + r) * width);
    }
  }
  return result;
}

QuantizedTensor transposed(const QuantizedTensor& matrix) {
  QuantizedTensor result;
  result.codes = transposed(matrix.codes);
  result.scales = transposed(matrix.scales);
  if (matrix.zero_points.defined()) result.zero_points = transposed(matrix.zero_points);
  result.scheme = matrix.scheme;
  if (matrix.scheme.granularity != QuantScheme::Granularity::Tensor)
    result.scheme.axis = 1 - matrix.scheme.axis;
  return result;
}

}  // namespace quern::passes
