#include "runtime/cpu/activations.h"

#include <algorithm>
#include <numeric>

#include "ir/float_types.h"
#include "runtime/cpu/linear_dispatch.h"
#include "runtime/cpu/ranged_encode.h"
#include "runtime/cpu/thread_team.h"

namespace quern::cpu {
namespace {

constexpr int64_t kLine = 64;
// 256 * 255 * 32639 < 2^31: the longest block whose sum of 8-bit codes times 16-bit codes is an exact int32.
constexpr int64_t kLongestBlock16 = 256;
// 32768 * 255 * 127 < 2^31.
constexpr int64_t kLongestBlock8 = 32768;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

bool has_byte_dot_product(Isa isa) {
  return isa == Isa::AvxVnni || isa == Isa::Avx512Vnni || isa == Isa::Avx512Bf16;
}

ActivationCode integer_code(const PackedSpec& weight, int bits, Isa isa) {
  if (has_byte_dot_product(isa)) return bits == 8 ? ActivationCode::S8 : ActivationCode::S8HiLo;
  // Byte products of AVX2 saturate at 16 bits: four-bit codes leave room for sums of eight steps, eight-bit
  // codes for none.
  if (bits == 8 && weight.code_bits() == 4 && isa != Isa::Portable) return ActivationCode::S8;
  return ActivationCode::S16Pairs;
}

// The longest block of whole steps that divides the group and keeps sums exact.
int64_t block_columns(const PackedSpec& weight, int bits) {
  const int64_t longest = bits == 8 ? kLongestBlock8 : kLongestBlock16;
  const int64_t group = weight.group();
  if (group <= longest) return group;
  return weight.is_grouped() ? std::gcd(group, longest) : longest;
}

EncodeTask encode_task(const Activations& a, const float* x, int64_t x_stride) {
  return {.kind = static_cast<InputKind>(a.format.code),
          .x = x,
          .x_stride = x_stride,
          .cols = a.format.cols,
          .padded_cols = a.format.padded_cols,
          .largest_code = a.format.bits == 8 ? 127.0F : 32639.0F,
          .codes = a.codes,
          .row_stride = a.format.row_stride(),
          .info = a.info,
          .rows = a.rows,
          .block = a.format.block};
}

}  // namespace

int64_t ActivationFormat::row_bytes() const {
  switch (code) {
    case ActivationCode::F32:
      return padded_cols * 4;
    case ActivationCode::BF16:
    case ActivationCode::S16Pairs:
    case ActivationCode::S8HiLo:
      return padded_cols * 2;
    case ActivationCode::S8:
      return padded_cols;
  }
  return 0;
}

int64_t ActivationFormat::row_stride() const {
  // An odd number of cache lines: rows a power of two apart would share a few sets of the first-level cache.
  return (round_up(row_bytes(), kLine) / kLine | 1) * kLine;
}

ActivationFormat activation_format(const PackedSpec& weight, ActivationMode mode, Isa isa,
                                   const ActivationRange& range) {
  ActivationFormat format;
  format.cols = weight.cols;
  format.padded_cols = weight.padded_cols();
  if (reference_forced()) return format;
  if (!weight.is_quantized()) {
    if (mode == ActivationMode::BF16 && weight.layout == PackedLayout::BF16PairTile16 &&
        isa == Isa::Avx512Bf16) {
      format.code = ActivationCode::BF16;
      format.bits = 16;
    }
    return format;
  }
  if (mode == ActivationMode::A8) format.range = range;
  format.bits = mode == ActivationMode::A8 && !range.is_wide() ? 8 : 16;
  format.code = integer_code(weight, format.bits, isa);
  format.block = block_columns(weight, format.bits);
  return format;
}

int64_t Activations::byte_size(const ActivationFormat& format, int64_t rows) {
  return rows * format.row_stride() +
         round_up(rows * format.blocks() * static_cast<int64_t>(sizeof(BlockInfo)), kLine);
}

Activations Activations::place(const ActivationFormat& format, int64_t rows, std::span<std::byte> memory,
                               Isa isa) {
  if (static_cast<int64_t>(memory.size()) < byte_size(format, rows) ||
      reinterpret_cast<uintptr_t>(memory.data()) % kLine != 0) {
    throw_error(ErrorCode::Internal, "placing ", rows, " rows of activations, ", byte_size(format, rows),
                " bytes, in ", memory.size(), " bytes aligned to less than ", kLine);
  }
  Activations out{.format = format, .rows = rows, .isa = isa, .reference = reference_forced()};
  out.codes = memory.data();
  out.info = reinterpret_cast<BlockInfo*>(memory.data() + rows * format.row_stride());
  return out;
}

void Activations::encode(const float* x, int64_t x_stride, int64_t first, int64_t count) const {
  if (format.range.kind != ActivationRange::Kind::Block) {
    return encode_ranged(format.range, encode_task(*this, x, x_stride), first, count);
  }
  linear_kernels(isa).encode(encode_task(*this, x, x_stride), first, count);
}

void Activations::encode(const float* x, int64_t x_stride, ThreadTeam& team) const {
  // Below this a region costs more than it saves.
  constexpr int64_t kWorthARegion = 16384;
  if (rows == 1 || rows * format.cols < kWorthARegion) return encode(x, x_stride, 0, rows);
  team.run([&](int thread) {
    const Range part = part_of(rows, thread, team.size());
    encode(x, x_stride, part.begin, part.end - part.begin);
  });
}

void decode_activations(const Activations& a, int64_t row, std::span<float> out) {
  const ActivationFormat& format = a.format;
  if (row < 0 || row >= a.rows || static_cast<int64_t>(out.size()) != format.cols) {
    throw_error(ErrorCode::InvalidArgument, "row ", row, " of ", a.rows, " activation rows of ", format.cols,
                " into ", out.size(), " elements");
  }
  const std::byte* codes = a.codes + row * format.row_stride();
  const auto* words = reinterpret_cast<const int16_t*>(codes);
  const auto* bytes = reinterpret_cast<const int8_t*>(codes);
  for (int64_t k = 0; k < format.cols; ++k) {
    float& value = out[static_cast<size_t>(k)];
    int64_t code = 0;
    switch (format.code) {
      case ActivationCode::F32:
        value = reinterpret_cast<const float*>(codes)[k];
        continue;
      case ActivationCode::BF16:
        value = bf16_to_f32(reinterpret_cast<const uint16_t*>(codes)[k]);
        continue;
      case ActivationCode::S16Pairs:
        code = words[k / 4 * 4 + (k % 2) * 2 + (k % 4) / 2];
        break;
      case ActivationCode::S8:
        code = bytes[k];
        break;
      case ActivationCode::S8HiLo:
        code = 256 * int64_t{bytes[k / 4 * 8 + k % 4]} + bytes[k / 4 * 8 + 4 + k % 4];
        break;
    }
    value = static_cast<float>(code) * a.info[k / format.block * a.rows + row].scale;
  }
}

}  // namespace quern::cpu
