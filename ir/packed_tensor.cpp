#include "ir/packed_tensor.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "ir/float_types.h"
#include "ir/parallel_for.h"

namespace quern {
namespace {

using Granularity = QuantScheme::Granularity;

static_assert(std::endian::native == std::endian::little, "packed tensors are little-endian in memory");

constexpr int64_t kTile = PackedSpec::kTile;
// Sizes past this are refused: no product of them overflows int64.
constexpr int64_t kMaxDim = int64_t{1} << 31;
constexpr int64_t kMaxBytes = int64_t{1} << 44;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

void check_shape(const Shape& shape) {
  if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1 || shape[0] > kMaxDim || shape[1] > kMaxDim) {
    throw_error(ErrorCode::InvalidArgument,
                "a packed weight has shape [N, K] with N and K from 1 to 2^31, not ", to_string(shape));
  }
}

// What is added to a code so that it is unsigned.
uint32_t code_bias(const PackedSpec& spec) {
  return is_signed_integer(spec.scheme.code) ? 1U << (spec.code_bits() - 1) : 0U;
}

float scale_at(const Tensor& scales, int64_t i) {
  if (scales.dtype() == DType::F32) return scales.data<float>()[static_cast<size_t>(i)];
  return f16_to_f32(scales.data<uint16_t>()[static_cast<size_t>(i)]);
}

// The bits of a code, as they lie in the tensor (two's complement, not widened).
uint32_t code_bits_at(const uint8_t* codes, int bits, int64_t i) {
  if (bits == 8) return codes[i];
  return (codes[i / 2] >> (4 * (i % 2))) & 0xF;
}

// Eight 4-bit codes n0..n7, n0 in the low bits, to bytes {n0 n4} {n1 n5} {n2 n6} {n3 n7}: swap the middle
// bytes, then the middle nibbles of each half.
uint32_t interleave_nibbles(uint32_t x) {
  const uint32_t bytes = (x ^ (x >> 8)) & 0x0000FF00U;
  x ^= bytes ^ (bytes << 8);
  const uint32_t nibbles = (x ^ (x >> 4)) & 0x00F000F0U;
  return x ^ nibbles ^ (nibbles << 4);
}

// The inverse: the same swaps the other way round.
uint32_t deinterleave_nibbles(uint32_t x) {
  const uint32_t nibbles = (x ^ (x >> 4)) & 0x00F000F0U;
  x ^= nibbles ^ (nibbles << 4);
  const uint32_t bytes = (x ^ (x >> 8)) & 0x0000FF00U;
  return x ^ bytes ^ (bytes << 8);
}

// out[j * kTile] = word j of one lane: a column of the tile.
template <class Word>
void scatter_words(const std::byte* source, int64_t count, std::byte* out) {
  for (int64_t j = 0; j < count; ++j) {
    std::memcpy(out + j * kTile * static_cast<int64_t>(sizeof(Word)), source + j * sizeof(Word),
                sizeof(Word));
  }
}

void pack_float_lane(const PackedSpec& spec, const std::byte* row, std::byte* tile, int64_t lane) {
  switch (spec.layout) {
    case PackedLayout::F32Tile16:
      return scatter_words<uint32_t>(row, spec.cols, tile + lane * 4);
    case PackedLayout::F16Tile16:
      return scatter_words<uint16_t>(row, spec.cols, tile + lane * 2);
    default: {
      const int64_t pairs = spec.cols / 2;
      scatter_words<uint32_t>(row, pairs, tile + lane * 4);
      if (spec.cols % 2 != 0) std::memcpy(tile + (pairs * kTile + lane) * 4, row + pairs * 4, 2);
    }
  }
}

// Codes first .. first + count - 1 of a row that starts at element `start` of `codes`, into one lane.
void pack_codes(const PackedSpec& spec, const uint8_t* codes, int64_t start, int64_t count, std::byte* out) {
  const int bits = spec.code_bits();
  const int64_t per_word = 32 / bits;
  const uint32_t flip = (bits == 8 ? 0x01010101U : 0x11111111U) * code_bias(spec);
  const int64_t whole = (bits == 4 && start % 2 != 0) ? 0 : count / per_word;
  const uint8_t* source = codes + start * bits / 8;
  for (int64_t j = 0; j < whole; ++j) {
    uint32_t word = 0;
    std::memcpy(&word, source + j * 4, 4);
    word ^= flip;
    if (bits == 4) word = interleave_nibbles(word);
    std::memcpy(out + j * kTile * 4, &word, 4);
  }
  for (int64_t j = whole; j * per_word < count; ++j) {
    uint32_t word = 0;
    for (int64_t k = j * per_word; k < std::min(count, (j + 1) * per_word); ++k) {
      const uint32_t code = code_bits_at(codes, bits, start + k) ^ code_bias(spec);
      word |= code << (bits * static_cast<int>(k - j * per_word));
    }
    if (bits == 4) word = interleave_nibbles(word);
    std::memcpy(out + j * kTile * 4, &word, 4);
  }
}

void put_scale(const PackedSpec& spec, const QuantizedTensor& weight, int64_t index, int64_t lane,
               std::byte* out) {
  if (spec.is_grouped() && spec.scale_dtype == DType::F16) {
    std::memcpy(out + lane * 2, &weight.scales.data<uint16_t>()[static_cast<size_t>(index)], 2);
    return;
  }
  const float scale = scale_at(weight.scales, index);
  std::memcpy(out + lane * 4, &scale, 4);
}

uint32_t biased_zero_point(const PackedSpec& spec, const QuantizedTensor& weight, int64_t index) {
  const auto* zeros = reinterpret_cast<const uint8_t*>(weight.zero_points.bytes());
  return code_bits_at(zeros, spec.code_bits(), index) ^ code_bias(spec);
}

void pack_quantized_lane(const PackedSpec& spec, const QuantizedTensor& weight, int64_t n, std::byte* tile,
                         int64_t lane) {
  const auto* codes = reinterpret_cast<const uint8_t*>(weight.codes.bytes());
  if (!spec.is_grouped()) {
    const int64_t index = spec.scheme.granularity == Granularity::Channel ? n : 0;
    put_scale(spec, weight, index, lane, tile);
    if (spec.has_zero_points()) {
      const uint32_t zero = biased_zero_point(spec, weight, index);
      std::memcpy(tile + kTile * 4 + lane * 4, &zero, 4);
    }
    return pack_codes(spec, codes, n * spec.cols, spec.cols, tile + spec.tile_header_bytes() + lane * 4);
  }
  const int64_t scale_bytes = kTile * bit_width(spec.scale_dtype) / 8;
  for (int64_t g = 0; g < spec.groups(); ++g) {
    std::byte* group = tile + g * spec.group_stride();
    const int64_t index = n * spec.groups() + g;
    put_scale(spec, weight, index, lane, group);
    if (spec.has_zero_points()) {
      group[scale_bytes + lane] = static_cast<std::byte>(biased_zero_point(spec, weight, index));
    }
    const int64_t first = g * spec.group();
    pack_codes(spec, codes, n * spec.cols + first, std::min(spec.group(), spec.cols - first),
               group + spec.group_header_bytes() + lane * 4);
  }
}

// Runs body(first, count) over tiles, on all processors where the weight is large enough to pay for threads.
template <class Body>
void over_tiles(const PackedSpec& spec, int64_t tiles, const Body& body) {
  constexpr int64_t kWorthAThread = 1 << 20;  // bytes
  parallel_for(tiles, {.least = std::max<int64_t>(1, kWorthAThread / spec.tile_stride())}, body);
}

template <class Weight, class PackLane>
void pack_range(const PackedSpec& spec, const Weight& weight, int64_t first, int64_t count,
                std::span<std::byte> out, const PackLane& pack_lane) {
  if (first < 0 || count < 0 || first + count > spec.tiles() ||
      static_cast<int64_t>(out.size()) != count * spec.tile_stride()) {
    throw_error(ErrorCode::InvalidArgument, "packing tiles ", first, " to ", first + count, " of ",
                spec.tiles(), " into ", out.size(), " bytes; a tile takes ", spec.tile_stride());
  }
  over_tiles(spec, count, [&](int64_t begin, int64_t length) {
    for (int64_t t = begin; t < begin + length; ++t) {
      std::byte* tile = out.data() + t * spec.tile_stride();
      std::memset(tile, 0, static_cast<size_t>(spec.tile_stride()));
      const int64_t row = (first + t) * kTile;
      for (int64_t lane = 0; lane < kTile && row + lane < spec.rows; ++lane) {
        pack_lane(weight, row + lane, tile, lane);
      }
    }
  });
}

template <class Weight>
PackedTensor pack_whole(const PackedSpec& spec, const Weight& weight) {
  Tensor bytes = Tensor::zeros(DType::U8, {spec.byte_size()});
  pack_tiles(spec, weight, 0, spec.tiles(), {bytes.mutable_bytes(), static_cast<size_t>(spec.byte_size())});
  return {spec, std::move(bytes)};
}

// One lane of a tile, read back.
class Lane {
 public:
  Lane(const PackedSpec& spec, const std::byte* tile, int64_t lane) : spec_(spec), tile_(tile), lane_(lane) {}

  uint32_t float_bits(int64_t k) const {
    switch (spec_.layout) {
      case PackedLayout::F32Tile16:
        return load<uint32_t>(tile_ + (k * kTile + lane_) * 4);
      case PackedLayout::F16Tile16:
        return load<uint16_t>(tile_ + (k * kTile + lane_) * 2);
      default:
        return load<uint16_t>(tile_ + (k / 2 * kTile + lane_) * 4 + k % 2 * 2);
    }
  }

  float float_value(int64_t k) const {
    switch (spec_.layout) {
      case PackedLayout::F32Tile16:
        return std::bit_cast<float>(float_bits(k));
      case PackedLayout::F16Tile16:
        return f16_to_f32(static_cast<uint16_t>(float_bits(k)));
      default:
        return bf16_to_f32(static_cast<uint16_t>(float_bits(k)));
    }
  }

  // The bits of the scale, as F16 if the stream holds them so, else as F32.
  uint32_t scale_bits(int64_t g) const {
    const std::byte* head = tile_ + g * spec_.group_stride();
    if (half_scales()) return load<uint16_t>(head + lane_ * 2);
    return load<uint32_t>(head + lane_ * 4);
  }
  float scale(int64_t g) const {
    const uint32_t bits = scale_bits(g);
    return half_scales() ? f16_to_f32(static_cast<uint16_t>(bits)) : std::bit_cast<float>(bits);
  }
  uint32_t zero_point(int64_t g) const {
    if (!spec_.has_zero_points()) return 1U << (spec_.code_bits() - 1);
    if (!spec_.is_grouped()) return load<uint32_t>(tile_ + kTile * 4 + lane_ * 4);
    const int64_t scale_bytes = kTile * bit_width(spec_.scale_dtype) / 8;
    return load<uint8_t>(tile_ + g * spec_.group_stride() + scale_bytes + lane_);
  }

  // body(k, unsigned code) for each k of group g, in order.
  template <class Body>
  void for_codes(int64_t g, const Body& body) const {
    const int bits = spec_.code_bits();
    const int64_t per_word = 32 / bits;
    const int64_t first = g * spec_.group();
    const int64_t count = std::min(spec_.group(), spec_.cols - first);
    const std::byte* codes =
        tile_ + spec_.tile_header_bytes() + g * spec_.group_stride() + spec_.group_header_bytes() + lane_ * 4;
    for (int64_t j = 0; j * per_word < count; ++j) {
      uint32_t word = load<uint32_t>(codes + j * kTile * 4);
      if (bits == 4) word = deinterleave_nibbles(word);
      for (int64_t k = j * per_word; k < std::min(count, (j + 1) * per_word); ++k) {
        body(first + k, (word >> (bits * static_cast<int>(k - j * per_word))) & ((1U << bits) - 1));
      }
    }
  }

 private:
  template <class T>
  static T load(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
  }
  bool half_scales() const { return spec_.is_grouped() && spec_.scale_dtype == DType::F16; }

  const PackedSpec& spec_;
  const std::byte* tile_;
  int64_t lane_;
};

}  // namespace

std::string_view to_string(PackedLayout layout) {
  switch (layout) {
    case PackedLayout::None:
      return "none";
    case PackedLayout::F32Tile16:
      return "f32 tile16";
    case PackedLayout::F16Tile16:
      return "f16 tile16";
    case PackedLayout::BF16PairTile16:
      return "bf16 pair tile16";
    case PackedLayout::U8Tile16Step4:
      return "u8 tile16 step4";
    case PackedLayout::U4Tile16Step8:
      return "u4 tile16 step8";
  }
  return "unknown";
}

PackedSpec PackedSpec::for_float(const Shape& shape, DType dtype) {
  check_shape(shape);
  PackedSpec spec;
  spec.rows = shape[0];
  spec.cols = shape[1];
  spec.scheme = QuantScheme{};
  switch (dtype) {
    case DType::F32:
      spec.layout = PackedLayout::F32Tile16;
      break;
    case DType::F16:
      spec.layout = PackedLayout::F16Tile16;
      break;
    case DType::BF16:
      spec.layout = PackedLayout::BF16PairTile16;
      break;
    default:
      throw_error(ErrorCode::Unsupported, "no packed layout for ", to_string(dtype),
                  " weights; cast them to f32, f16 or bf16");
  }
  return spec;
}

PackedSpec PackedSpec::for_quantized(const Shape& shape, const QuantScheme& scheme, DType scale_dtype) {
  check_shape(shape);
  PackedSpec spec;
  spec.rows = shape[0];
  spec.cols = shape[1];
  spec.scheme = scheme;
  spec.scale_dtype = scale_dtype;
  if (scheme.code == DType::I8 || scheme.code == DType::U8) {
    spec.layout = PackedLayout::U8Tile16Step4;
  } else if (scheme.code == DType::I4 || scheme.code == DType::U4) {
    spec.layout = PackedLayout::U4Tile16Step8;
  } else {
    throw_error(ErrorCode::Unsupported, "no packed layout for ", to_string(scheme.code), " codes");
  }
  if (scale_dtype != DType::F32 && scale_dtype != DType::F16) {
    throw_error(ErrorCode::Unsupported, "packed weights have f32 or f16 scales, not ",
                to_string(scale_dtype));
  }
  const bool along_rows = scheme.granularity == Granularity::Tensor ||
                          (scheme.granularity == Granularity::Channel && scheme.axis == 0) ||
                          (scheme.granularity == Granularity::Group && scheme.axis == 1);
  if (!along_rows) {
    throw_error(ErrorCode::Unsupported,
                "a packed weight [N, K] has its channels on axis 0 and its groups on axis 1; ",
                to_string(scheme), " has axis ", scheme.axis);
  }
  if (scheme.granularity == Granularity::Group &&
      (scheme.group_size < kQuantKMultiple || scheme.group_size % kQuantKMultiple != 0 ||
       scheme.group_size > kMaxDim)) {
    throw_error(ErrorCode::Unsupported, "packed weights have groups of a multiple of ", kQuantKMultiple,
                ", not ", scheme.group_size);
  }
  return spec;
}

DType PackedSpec::dtype() const {
  switch (layout) {
    case PackedLayout::None:
      return DType::Undefined;
    case PackedLayout::F32Tile16:
      return DType::F32;
    case PackedLayout::F16Tile16:
      return DType::F16;
    case PackedLayout::BF16PairTile16:
      return DType::BF16;
    default:
      return scheme.code;
  }
}

int PackedSpec::code_bits() const {
  if (layout == PackedLayout::U8Tile16Step4) return 8;
  return layout == PackedLayout::U4Tile16Step8 ? 4 : 0;
}

int64_t PackedSpec::padded_cols() const {
  if (is_quantized()) return round_up(cols, kQuantKMultiple);
  return layout == PackedLayout::BF16PairTile16 ? round_up(cols, 2) : cols;
}

int64_t PackedSpec::group() const {
  // A group longer than the row is the row; otherwise only the last group is cut short.
  return is_grouped() ? std::min(scheme.group_size, padded_cols()) : padded_cols();
}

int64_t PackedSpec::tile_header_bytes() const {
  if (!is_quantized() || is_grouped()) return 0;
  return kTile * 4 * (has_zero_points() ? 2 : 1);
}

int64_t PackedSpec::group_header_bytes() const {
  if (!is_grouped()) return 0;
  return kTile * bit_width(scale_dtype) / 8 + (has_zero_points() ? kTile : 0);
}

int64_t PackedSpec::group_stride() const {
  if (!is_quantized()) return 0;
  return group_header_bytes() + group() * kTile * code_bits() / 8;
}

int64_t PackedSpec::tile_stride() const {
  if (!is_quantized()) return round_up(padded_cols() * kTile * bit_width(dtype()) / 8, kAlignment);
  return round_up(
      tile_header_bytes() + groups() * group_header_bytes() + padded_cols() * kTile * code_bits() / 8,
      kAlignment);
}

double PackedSpec::bits_per_weight() const {
  return 8.0 * static_cast<double>(byte_size()) / (static_cast<double>(rows) * static_cast<double>(cols));
}

void PackedSpec::check() const {
  switch (layout) {
    case PackedLayout::F32Tile16:
    case PackedLayout::F16Tile16:
    case PackedLayout::BF16PairTile16:
    case PackedLayout::U8Tile16Step4:
    case PackedLayout::U4Tile16Step8:
      break;
    default:
      throw_error(ErrorCode::Corrupt, "packed weight layout ", static_cast<uint32_t>(layout),
                  " is unknown; a newer quern may read it");
  }
  try {
    const PackedSpec expected =
        is_quantized() ? for_quantized({rows, cols}, scheme, scale_dtype) : for_float({rows, cols}, dtype());
    if (expected.layout != layout) {
      throw_error(ErrorCode::Corrupt, "packed weight layout ", to_string(layout), " cannot hold ",
                  to_string(scheme.code), " codes");
    }
  } catch (const Error& error) {
    throw_error(ErrorCode::Corrupt, error.message());
  }
  // 16 outputs * 4 bytes * 2^31 inputs, with headers less than twice that, times the tiles: below 2^63.
  if (static_cast<double>(tiles()) * static_cast<double>(tile_stride()) > static_cast<double>(kMaxBytes)) {
    throw_error(ErrorCode::Corrupt, "a packed weight of ", rows, " x ", cols, " elements is too large");
  }
}

PackedTensor::PackedTensor(PackedSpec spec, Tensor bytes) : spec_(spec), bytes_(std::move(bytes)) {
  spec_.check();
  if (bytes_.dtype() != DType::U8 || bytes_.byte_size() != spec_.byte_size()) {
    throw_error(ErrorCode::Corrupt, "a packed weight of ", spec_.rows, " x ", spec_.cols, " (",
                to_string(spec_.layout), ") takes ", spec_.byte_size(), " bytes, not ", bytes_.byte_size());
  }
  if (reinterpret_cast<uintptr_t>(bytes_.bytes()) % PackedSpec::kAlignment != 0) {
    throw_error(ErrorCode::Corrupt, "the bytes of a packed weight are not aligned to ",
                PackedSpec::kAlignment);
  }
}

void PackedTensor::dequantize_row(int64_t n, std::span<float> out) const {
  if (n < 0 || n >= rows() || static_cast<int64_t>(out.size()) != cols()) {
    throw_error(ErrorCode::InvalidArgument, "row ", n, " of a packed weight ", to_string(shape()), " into ",
                out.size(), " elements");
  }
  const Lane lane(spec_, tile(n / kTile), n % kTile);
  if (!spec_.is_quantized()) {
    for (int64_t k = 0; k < cols(); ++k) out[static_cast<size_t>(k)] = lane.float_value(k);
    return;
  }
  for (int64_t g = 0; g < spec_.groups(); ++g) {
    const float scale = lane.scale(g);
    const auto zero = static_cast<int32_t>(lane.zero_point(g));
    lane.for_codes(g, [&](int64_t k, uint32_t code) {
      out[static_cast<size_t>(k)] = static_cast<float>(static_cast<int32_t>(code) - zero) * scale;
    });
  }
}

Tensor PackedTensor::dequantize() const {
  Tensor out = Tensor::zeros(DType::F32, shape());
  const std::span<float> values = out.mutable_data<float>();
  const auto width = static_cast<size_t>(cols());
  over_tiles(spec_, spec_.tiles(), [&](int64_t first, int64_t count) {
    for (int64_t n = first * kTile; n < std::min(rows(), (first + count) * kTile); ++n) {
      dequantize_row(n, values.subspan(static_cast<size_t>(n) * width, width));
    }
  });
  return out;
}

void pack_tiles(const PackedSpec& spec, const Tensor& weight, int64_t first, int64_t count,
                std::span<std::byte> out) {
  if (spec != PackedSpec::for_float(weight.shape(), weight.dtype())) {
    throw_error(ErrorCode::InvalidArgument, "the spec is not that of a ", to_string(weight.dtype()),
                " weight ", to_string(weight.shape()));
  }
  const int64_t row_bytes = spec.cols * bit_width(spec.dtype()) / 8;
  pack_range(spec, weight, first, count, out, [&](const Tensor& w, int64_t n, std::byte* tile, int64_t lane) {
    pack_float_lane(spec, w.bytes() + n * row_bytes, tile, lane);
  });
}

void pack_tiles(const PackedSpec& spec, const QuantizedTensor& weight, int64_t first, int64_t count,
                std::span<std::byte> out) {
  weight.check();
  if (spec != PackedSpec::for_quantized(weight.shape(), weight.scheme, weight.scales.dtype())) {
    throw_error(ErrorCode::InvalidArgument, "the spec is not that of ", to_string(weight.scheme), " codes ",
                to_string(weight.shape()));
  }
  pack_range(spec, weight, first, count, out,
             [&](const QuantizedTensor& w, int64_t n, std::byte* tile, int64_t lane) {
               pack_quantized_lane(spec, w, n, tile, lane);
             });
}

PackedTensor pack(const Tensor& weight) {
  return pack_whole(PackedSpec::for_float(weight.shape(), weight.dtype()), weight);
}

PackedTensor pack(const QuantizedTensor& weight) {
  weight.check();
  return pack_whole(PackedSpec::for_quantized(weight.shape(), weight.scheme, weight.scales.dtype()), weight);
}

Tensor unpack(const PackedTensor& packed) {
  const PackedSpec& spec = packed.spec();
  if (!packed.defined() || spec.is_quantized()) {
    throw_error(ErrorCode::InvalidArgument, "unpacking a quantized weight as a float one");
  }
  Tensor out = Tensor::zeros(spec.dtype(), packed.shape());
  std::byte* bytes = out.mutable_bytes();
  const int64_t width = bit_width(spec.dtype()) / 8;
  for (int64_t n = 0; n < spec.rows; ++n) {
    const Lane lane(spec, packed.tile(n / kTile), n % kTile);
    for (int64_t k = 0; k < spec.cols; ++k) {
      const uint32_t bits = lane.float_bits(k);
      std::memcpy(bytes + (n * spec.cols + k) * width, &bits, static_cast<size_t>(width));
    }
  }
  return out;
}

QuantizedTensor unpack_quantized(const PackedTensor& packed) {
  const PackedSpec& spec = packed.spec();
  if (!packed.defined() || !spec.is_quantized()) {
    throw_error(ErrorCode::InvalidArgument, "unpacking a float weight as a quantized one");
  }
  QuantizedTensor out;
  out.scheme = spec.scheme;
  out.codes = Tensor::zeros(spec.scheme.code, packed.shape());
  Shape scale_shape;
  if (spec.scheme.granularity == Granularity::Channel) scale_shape = {spec.rows};
  if (spec.is_grouped()) scale_shape = {spec.rows, spec.groups()};
  out.scales = Tensor::zeros(spec.scale_dtype, scale_shape);
  if (spec.has_zero_points()) out.zero_points = Tensor::zeros(spec.scheme.code, scale_shape);
  const auto bias = static_cast<int64_t>(code_bias(spec));
  for (int64_t n = 0; n < spec.rows; ++n) {
    const Lane lane(spec, packed.tile(n / kTile), n % kTile);
    for (int64_t g = 0; g < spec.groups(); ++g) {
      lane.for_codes(g, [&](int64_t k, uint32_t code) { out.codes.set_int(n * spec.cols + k, code - bias); });
      const int64_t index = n * spec.groups() + g;
      if (index >= out.scales.size()) continue;
      // A scale that came as binary16 is exact as float, and back.
      out.scales.set(index, lane.scale(g));
      if (spec.has_zero_points()) out.zero_points.set_int(index, lane.zero_point(g) - bias);
    }
  }
  return out;
}

}  // namespace quern
