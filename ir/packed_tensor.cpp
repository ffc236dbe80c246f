#include "ir/packed_tensor.h"

#include <algorithm>
#include <array>
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
constexpr int64_t kPlaneStep = 16;  // columns of a word of a bit plane
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

// Sixteen codes of a lane as one word for each bit, kTile words apart.
void put_planes(const std::array<uint32_t, kPlaneStep>& codes, int planes, std::byte* out) {
  for (int p = 0; p < planes; ++p) {
    uint32_t word = 0;
    for (size_t i = 0; i < codes.size(); ++i) word |= ((codes[i] >> p) & 1U) << i;
    const auto narrow = static_cast<uint16_t>(word);
    std::memcpy(out + p * kTile * 2, &narrow, 2);
  }
}

bool is_planar(const PackedSpec& spec) {
  return spec.layout == PackedLayout::U3Tile16Planes || spec.layout == PackedLayout::U2Tile16Planes;
}

void pack_planes(const PackedSpec& spec, const uint8_t* codes, int64_t start, int64_t count, std::byte* out) {
  const int planes = spec.code_bits();
  const uint32_t mask = (1U << planes) - 1;
  const int stored = bit_width(spec.scheme.code);
  for (int64_t first = 0; first < count; first += kPlaneStep) {
    std::array<uint32_t, kPlaneStep> block{};
    for (int64_t i = 0; i < std::min<int64_t>(kPlaneStep, count - first); ++i) {
      block[static_cast<size_t>(i)] =
          (code_bits_at(codes, stored, start + first + i) + code_bias(spec)) & mask;
    }
    put_planes(block, planes, out + first / kPlaneStep * planes * kTile * 2);
  }
}

// Codes first .. first + count - 1 of a row that starts at element `start` of `codes`, into one lane. `out`
// is where the tile's codes begin.
void pack_codes(const PackedSpec& spec, const uint8_t* codes, int64_t start, int64_t count, std::byte* out,
                int64_t lane) {
  if (is_planar(spec)) return pack_planes(spec, codes, start, count, out + lane * 2);
  if (spec.layout == PackedLayout::F8Tile16) {
    for (int64_t k = 0; k < count; ++k) out[k * kTile + lane] = static_cast<std::byte>(codes[start + k]);
    return;
  }
  out += lane * 4;
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
  const uint32_t mask = (1U << spec.code_bits()) - 1;
  return (code_bits_at(zeros, bit_width(spec.scheme.code), index) + code_bias(spec)) & mask;
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
    return pack_codes(spec, codes, n * spec.cols, spec.cols, tile + spec.tile_header_bytes(), lane);
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
               group + spec.group_header_bytes(), lane);
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
    if (spec_.layout == PackedLayout::F8Tile16) return 0;
    if (!spec_.has_zero_points()) return 1U << (spec_.code_bits() - 1);
    if (!spec_.is_grouped()) return load<uint32_t>(tile_ + kTile * 4 + lane_ * 4);
    const int64_t scale_bytes = kTile * bit_width(spec_.scale_dtype) / 8;
    return load<uint8_t>(tile_ + g * spec_.group_stride() + scale_bytes + lane_);
  }

  // body(k, unsigned code) for each k of group g, in order.
  template <class Body>
  void for_codes(int64_t g, const Body& body) const {
    const int64_t first = g * spec_.group();
    const int64_t count = std::min(spec_.group(), spec_.cols - first);
    const std::byte* codes =
        tile_ + spec_.tile_header_bytes() + g * spec_.group_stride() + spec_.group_header_bytes();
    if (is_planar(spec_)) return for_planar_codes(codes + lane_ * 2, first, count, body);
    if (spec_.layout == PackedLayout::F8Tile16) {
      for (int64_t k = 0; k < count; ++k)
        body(first + k, std::to_integer<uint32_t>(codes[k * kTile + lane_]));
      return;
    }
    codes += lane_ * 4;
    const int bits = spec_.code_bits();
    const int64_t per_word = 32 / bits;
    for (int64_t j = 0; j * per_word < count; ++j) {
      uint32_t word = load<uint32_t>(codes + j * kTile * 4);
      if (bits == 4) word = deinterleave_nibbles(word);
      for (int64_t k = j * per_word; k < std::min(count, (j + 1) * per_word); ++k) {
        body(first + k, (word >> (bits * static_cast<int>(k - j * per_word))) & ((1U << bits) - 1));
      }
    }
  }

 private:
  template <class Body>
  void for_planar_codes(const std::byte* codes, int64_t first, int64_t count, const Body& body) const {
    const int planes = spec_.code_bits();
    for (int64_t begin = 0; begin < count; begin += kPlaneStep) {
      std::array<uint32_t, 3> words{};
      for (int p = 0; p < planes; ++p) {
        words[static_cast<size_t>(p)] = load<uint16_t>(codes + (begin / kPlaneStep * planes + p) * kTile * 2);
      }
      for (int64_t i = 0; i < std::min(kPlaneStep, count - begin); ++i) {
        uint32_t code = 0;
        for (int p = 0; p < planes; ++p) code |= ((words[static_cast<size_t>(p)] >> i) & 1U) << p;
        body(first + begin + i, code);
      }
    }
  }

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

// None where there is no layout.
PackedLayout layout_of(const QuantScheme& scheme) {
  switch (scheme.code) {
    case DType::I8:
    case DType::U8:
      return scheme.code_bits() == 8 ? PackedLayout::U8Tile16Step4 : PackedLayout::None;
    case DType::I4:
    case DType::U4:
      return scheme.code_bits() == 4   ? PackedLayout::U4Tile16Step8
             : scheme.code_bits() == 3 ? PackedLayout::U3Tile16Planes
             : scheme.code_bits() == 2 ? PackedLayout::U2Tile16Planes
                                       : PackedLayout::None;
    case DType::F8E4M3:
    case DType::F8E5M2:
      return scheme.symmetric && scheme.bits == 0 ? PackedLayout::F8Tile16 : PackedLayout::None;
    default:
      return PackedLayout::None;
  }
}

// Codes of 3 or 2 bits as codes of 4. Where zero points are implied the middle moves, and codes with it.
void widen_lane(const PackedSpec& from, const PackedSpec& to, const std::byte* source, std::byte* target,
                int64_t lane) {
  const Lane in(from, source, lane);
  const uint32_t moved = from.has_zero_points() ? 0 : 8U - (1U << (from.code_bits() - 1));
  const int64_t header = from.is_grouped() ? from.group_header_bytes() : from.tile_header_bytes();
  const bool half = from.is_grouped() && from.scale_dtype == DType::F16;
  for (int64_t g = 0; g < from.groups(); ++g) {
    std::byte* out = target + g * to.group_stride();
    const uint32_t scale = in.scale_bits(g);
    std::memcpy(out + lane * (half ? 2 : 4), &scale, half ? 2 : 4);
    if (from.has_zero_points()) {
      const uint32_t zero = in.zero_point(g);
      const int64_t at = kTile * (half ? 2 : 4);
      if (from.is_grouped()) {
        out[at + lane] = static_cast<std::byte>(zero);
      } else {
        std::memcpy(out + at + lane * 4, &zero, 4);
      }
    }
    uint32_t word = 0;
    const int64_t last = std::min(from.cols, (g + 1) * from.group()) - 1;
    in.for_codes(g, [&](int64_t k, uint32_t code) {
      const int64_t i = k - g * from.group();
      word |= (code + moved) << (4 * (i % 8));
      if (i % 8 != 7 && k != last) return;
      word = interleave_nibbles(word);
      std::memcpy(out + header + (i / 8 * kTile + lane) * 4, &word, 4);
      word = 0;
    });
  }
}

PackedTensor widen_codes(const PackedTensor& weight) {
  const PackedSpec& from = weight.spec();
  QuantScheme scheme = from.scheme;
  scheme.bits = 0;
  // Unsigned symmetric codes of 3 bits have the zero point 4, of 4 bits 8: signed ones have 0 in both.
  if (scheme.symmetric) scheme.code = DType::I4;
  const PackedSpec to = PackedSpec::for_quantized(weight.shape(), scheme, from.scale_dtype);
  Tensor bytes = Tensor::zeros(DType::U8, {to.byte_size()});
  std::byte* out = bytes.mutable_bytes();
  over_tiles(to, to.tiles(), [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; ++t) {
      for (int64_t lane = 0; lane < std::min(kTile, from.rows - t * kTile); ++lane) {
        widen_lane(from, to, weight.tile(t), out + t * to.tile_stride(), lane);
      }
    }
  });
  return {to, std::move(bytes)};
}

}  // namespace

PackedTensor widen(const PackedTensor& weight) {
  if (weight.spec().has_kernels()) return weight;
  if (weight.spec().layout != PackedLayout::F8Tile16) return widen_codes(weight);
  const Tensor values = weight.dequantize();
  constexpr uint32_t kLost = 0xFFFF;  // what bfloat16 has not
  const auto bits =
      std::span(reinterpret_cast<const uint32_t*>(values.bytes()), static_cast<size_t>(values.size()));
  const bool exact = std::none_of(bits.begin(), bits.end(), [](uint32_t b) { return (b & kLost) != 0; });
  return pack(exact ? values.cast(DType::BF16) : values);
}

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
    case PackedLayout::U3Tile16Planes:
      return "u3 tile16 planes";
    case PackedLayout::U2Tile16Planes:
      return "u2 tile16 planes";
    case PackedLayout::F8Tile16:
      return "f8 tile16";
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
  spec.layout = layout_of(scheme);
  if (spec.layout == PackedLayout::None) {
    throw_error(ErrorCode::Unsupported, "no packed layout for ", to_string(scheme.code), " codes of ",
                scheme.code_bits(), " bits");
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
  return is_quantized() ? scheme.code_bits() : 0;
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
    case PackedLayout::U3Tile16Planes:
    case PackedLayout::U2Tile16Planes:
    case PackedLayout::F8Tile16:
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
    if (spec_.layout == PackedLayout::F8Tile16) {
      lane.for_codes(g, [&](int64_t k, uint32_t code) {
        out[static_cast<size_t>(k)] = narrow_to_f32(static_cast<uint8_t>(code), spec_.scheme.code) * scale;
      });
      continue;
    }
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
      lane.for_codes(g, [&](int64_t k, uint32_t code) {
        if (spec.layout == PackedLayout::F8Tile16) {
          out.codes.mutable_bytes()[n * spec.cols + k] = static_cast<std::byte>(code);
        } else {
          out.codes.set_int(n * spec.cols + k, code - bias);
        }
      });
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
