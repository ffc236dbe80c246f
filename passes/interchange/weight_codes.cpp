#include "passes/interchange/weight_codes.h"

#include <algorithm>

#include "passes/canonicalize/quantized_layout.h"

namespace quern::passes {
namespace {

using Granularity = QuantScheme::Granularity;

bool is_by_rows(const QuantScheme& scheme) {
  return scheme.granularity == Granularity::Tensor || scheme.axis == 0;
}

// The largest power of two, from 16 to `most`, that divides `size`; 16 if none does.
int64_t block_dividing(int64_t size, int64_t most) {
  constexpr int64_t kSmallest = 16;
  int64_t block = most;
  while (block > kSmallest && size % block != 0) block /= 2;
  return block;
}

int64_t block_size(const QuantizedTensor& tensor) {
  constexpr int64_t kUsual = 128, kLargest = 256;
  if (tensor.scheme.granularity != Granularity::Group) return block_dividing(tensor.shape()[1], kUsual);
  return block_dividing(tensor.scheme.group_size, kLargest);
}

// Where the bytes of the codes are those of MatMulNBits but for the sign.
bool has_same_layout(const QuantizedTensor& tensor, int bits, int64_t block) {
  return bit_width(tensor.scheme.code) == bits && tensor.shape()[1] % block == 0;
}

void copy_codes(const UnsignedCodes& source, int64_t block, Tensor& target) {
  const int64_t rows = source.tensor.shape()[0], cols = source.tensor.shape()[1];
  const auto bytes = target.mutable_data<uint8_t>();
  if (has_same_layout(source.tensor, source.bits, block)) {
    const int sign = source.offset == 0 ? 0 : source.bits == 8 ? 0x80 : source.bits == 4 ? 0x88 : 0xAA;
    const auto codes = reinterpret_cast<const uint8_t*>(source.tensor.codes.bytes());
    std::transform(codes, codes + bytes.size(), bytes.begin(),
                   [&](uint8_t byte) { return static_cast<uint8_t>(byte ^ sign); });
    return;
  }
  const int64_t per_byte = 8 / source.bits;
  const int64_t stride = static_cast<int64_t>(bytes.size()) / std::max<int64_t>(1, rows);
  for (int64_t n = 0; n < rows; ++n) {
    for (int64_t k = 0; k < cols; ++k) {
      bytes[static_cast<size_t>(n * stride + k / per_byte)] |=
          static_cast<uint8_t>(source.code(n * cols + k) << (k % per_byte * source.bits));
    }
  }
}

}  // namespace

UnsignedCodes::UnsignedCodes(const QuantizedTensor& source) : tensor(source) {
  const QuantScheme& scheme = tensor.scheme;
  bits = scheme.code_bits() == 2 ? 2 : scheme.code_bits() <= 4 ? 4 : 8;
  offset = is_signed_integer(scheme.code) ? int64_t{1} << (bits - 1) : 0;
  usual = offset != 0 ? offset : int64_t{1} << (scheme.code_bits() - 1);
}

std::optional<BlockCodes> to_blocks(const QuantizedTensor& tensor) {
  const QuantScheme& scheme = tensor.scheme;
  const bool grouped = scheme.granularity == Granularity::Group;
  constexpr int64_t kGroupMultiple = 16;
  if (!is_integer(scheme.code) || tensor.shape().size() != 2) return std::nullopt;
  if (grouped ? scheme.axis != 1 || scheme.group_size % kGroupMultiple != 0 : !is_by_rows(scheme))
    return std::nullopt;
  const UnsignedCodes source(tensor);
  BlockCodes result{
      .bits = source.bits, .block = block_size(tensor), .codes = {}, .scales = {}, .points = {}};
  const int64_t rows = tensor.shape()[0], cols = tensor.shape()[1];
  const int64_t blocks = (cols + result.block - 1) / result.block;
  result.codes = Tensor::zeros(DType::U8, {rows, blocks, result.block * result.bits / 8});
  copy_codes(source, result.block, result.codes);

  const auto scale_of = [&](int64_t n, int64_t b) -> int64_t {
    if (!grouped) return scheme.granularity == Granularity::Tensor ? 0 : n;
    const int64_t groups = (cols + scheme.group_size - 1) / scheme.group_size;
    return n * groups + b * result.block / scheme.group_size;
  };
  result.scales = Tensor::zeros(DType::F32, {rows, blocks});
  const auto scales = result.scales.mutable_data<float>();
  const int64_t per_byte = 8 / result.bits;
  const int64_t stride = (blocks + per_byte - 1) / per_byte;
  Tensor points = Tensor::zeros(DType::U8, {rows, stride});
  const auto bytes = points.mutable_data<uint8_t>();
  bool usual = true;
  for (int64_t n = 0; n < rows; ++n) {
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t from = scale_of(n, b);
      scales[static_cast<size_t>(n * blocks + b)] = static_cast<float>(tensor.scales.at(from));
      const int64_t point = source.point(from);
      usual = usual && point == int64_t{1} << (result.bits - 1);
      bytes[static_cast<size_t>(n * stride + b / per_byte)] |=
          static_cast<uint8_t>(point << (b % per_byte * result.bits));
    }
  }
  if (!usual) result.points = points;
  return result;
}

std::optional<ColumnCodes> to_columns(const QuantizedTensor& tensor) {
  const QuantScheme& scheme = tensor.scheme;
  if (!is_integer(scheme.code) || scheme.granularity == Granularity::Group || !is_by_rows(scheme))
    return std::nullopt;
  const UnsignedCodes source(tensor);
  const int64_t rows = tensor.shape()[0], cols = tensor.shape()[1];
  ColumnCodes result{.codes = Tensor::zeros(DType::U8, {cols, rows}),
                     .scales = tensor.scales.cast(DType::F32),
                     .points = Tensor::zeros(DType::U8, tensor.scales.shape())};
  const auto codes = result.codes.mutable_data<uint8_t>();
  for (int64_t n = 0; n < rows; ++n) {
    for (int64_t k = 0; k < cols; ++k)
      codes[static_cast<size_t>(k * rows + n)] = static_cast<uint8_t>(source.code(n * cols + k));
  }
  const auto points = result.points.mutable_data<uint8_t>();
  for (size_t i = 0; i < points.size(); ++i)
    points[i] = static_cast<uint8_t>(source.point(static_cast<int64_t>(i)));
  const bool one = std::all_of(points.begin(), points.end(), [&](uint8_t p) { return p == points.front(); });
  if (one && !points.empty()) result.points = Tensor::scalar(points.front());
  return result;
}

Tensor explicit_points(const QuantizedTensor& tensor) {
  if (tensor.zero_points.defined()) return tensor.zero_points;
  const QuantScheme& scheme = tensor.scheme;
  if (!is_integer(scheme.code) || is_signed_integer(scheme.code)) return {};
  Tensor points = Tensor::zeros(scheme.code, tensor.scales.shape());
  for (int64_t i = 0; i < points.size(); ++i) points.set_int(i, int64_t{1} << (scheme.code_bits() - 1));
  return points;
}

QuantizedTensor in_bytes(const QuantizedTensor& tensor) {
  if (!is_sub_byte(tensor.scheme.code)) return tensor;
  QuantizedTensor wide = tensor;
  wide.scheme.bits = tensor.scheme.code_bits();
  wide.scheme.code = is_signed_integer(tensor.scheme.code) ? DType::I8 : DType::U8;
  const auto widened = [&](const Tensor& narrow) {
    Tensor bytes = Tensor::zeros(wide.scheme.code, narrow.shape());
    for (int64_t i = 0; i < bytes.size(); ++i) bytes.set_int(i, narrow.int_at(i));
    return bytes;
  };
  wide.codes = widened(tensor.codes);
  if (tensor.zero_points.defined()) wide.zero_points = widened(tensor.zero_points);
  return wide;
}

}  // namespace quern::passes
