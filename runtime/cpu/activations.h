// Inputs of a product, brought into the form its kernel reads: once for all the products that share them.
//
// Weights of integer codes take integer activations, quantized per row and block of columns (a row is a
// token), so that the sum over a block is an exact int32 in any order, on any machine:
//
//   scale = max |x| / q,  code = round(x / scale),  x is nearly code * scale          (symmetric, per row and
//   block)
//
// with q = 32639 (A16) or 127 (A8). A16 is the weight-only mode: its error is below 2^-16 of the block's
// largest input, less than that of binary16. A8 halves the work of many-row products and changes the model:
// it is what dynamic int8 quantization does elsewhere; there ranges may be taken from the whole row, or be
// fixed (ActivationRange). A block is the weight's group where it has groups, else 256 columns (A16) or the
// whole row (A8). Infinities and NaN make the block's scale NaN, so that they show in the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ir/packed_tensor.h"
#include "runtime/cpu/isa.h"
#include "runtime/cpu/linear_kernels.h"

namespace quern::cpu {

class ThreadTeam;

// What may happen to the inputs of a product.
enum class ActivationMode : uint8_t {
  A16,   // integer weights: 16-bit codes; float weights: as they are
  A8,    // integer weights: 8-bit codes; float weights: as they are
  BF16,  // BF16 weights: rounded to BF16 where the machine multiplies those faster (Isa::Avx512Bf16), else as
         // A16
};

// How the values of a row are stored; chosen by activation_format() for the kernel of the instruction set.
enum class ActivationCode : uint8_t {
  F32,
  BF16,      // in order
  S16Pairs,  // int16; of four columns: 0, 2, 1, 3 (the bytes of a weight word, even and odd)
  S8,        // int8, in order
  S8HiLo,    // 16 bits as 256 * hi + lo, both int8; of four columns: the four hi, then the four lo
};

// What the scale of a row's integers is taken from.
struct ActivationRange {
  enum class Kind : uint8_t {
    Block,          // each block's largest magnitude
    Row,            // the row's: all its blocks have one scale
    RowAsymmetric,  // the row's extremes, as DynamicQuantizeLinear of ai.onnx: codes 0 .. 255 with a zero
                    // point
    Fixed           // nothing: it is given
  };
  Kind kind = Kind::Block;
  // Of Fixed: code = clamp(round(x / scale), lowest, highest), zero points subtracted.
  float scale = 0;
  int32_t lowest = 0;
  int32_t highest = 0;

  // Whether codes less their zero points need more than 8 bits.
  bool is_wide() const {
    return kind == Kind::RowAsymmetric || (kind == Kind::Fixed && (lowest < -127 || highest > 127));
  }
  bool operator==(const ActivationRange&) const = default;
};

// Two products with equal formats can share one Activations.
struct ActivationFormat {
  ActivationCode code = ActivationCode::F32;
  int bits = 32;            // of a value: 32, 16, or 8; S16Pairs holds either
  int64_t cols = 0;         // K
  int64_t padded_cols = 0;  // K as the weight pads it; the padding is 0
  int64_t block = 0;        // columns that share a scale; 0: no scales (F32, BF16)
  ActivationRange range = {};

  int64_t blocks() const { return block == 0 ? 0 : (padded_cols + block - 1) / block; }
  // Bytes of a row's values, and from one row to the next.
  int64_t row_bytes() const;
  int64_t row_stride() const;

  bool operator==(const ActivationFormat&) const = default;
};

// What the product with `weight` wants, by the kernels of `isa`; F32 while the reference is forced. `range`
// other than Block is for A8 and integer weights; what is_wide() takes the kernels of 16-bit codes, exactly.
ActivationFormat activation_format(const PackedSpec& weight, ActivationMode mode, Isa isa = active_isa(),
                                   const ActivationRange& range = {});

// Encoded rows, laid out in memory that the caller owns. Cheap to copy; does not own anything.
struct Activations {
  ActivationFormat format;
  int64_t rows = 0;
  Isa isa = Isa::Portable;     // whose kernels encode and read it
  bool reference = false;      // reference_forced() when it was placed
  std::byte* codes = nullptr;  // rows * format.row_stride()
  BlockInfo* info = nullptr;   // [blocks, rows]: scales, and minus the sums of a block's codes

  // Bytes that place() needs for so many rows.
  static int64_t byte_size(const ActivationFormat& format, int64_t rows);
  // Lays rows out in `memory`, aligned to 64 bytes; nothing is encoded yet. Throws Error{Internal} where it
  // is too small or not aligned.
  static Activations place(const ActivationFormat& format, int64_t rows, std::span<std::byte> memory,
                           Isa isa = active_isa());

  // Encodes rows first .. first + count - 1 from x + r * x_stride (x points to row 0; strides in elements).
  // Each row by itself; different rows may be encoded by different threads.
  void encode(const float* x, int64_t x_stride, int64_t first, int64_t count) const;
  // All rows, by all threads of the team.
  void encode(const float* x, int64_t x_stride, ThreadTeam& team) const;
};

// The values of one encoded row as floats, out[K]: what the kernel multiplies with. For tests and reports.
void decode_activations(const Activations& activations, int64_t row, std::span<float> out);

}  // namespace quern::cpu
