// A weight matrix laid out for the kernels that read it: y[rows, N] = x[rows, K] * W[N, K]^T.
//
// One family of layouts serves every instruction set, so that an artifact made on one machine runs, mapped
// and not copied, on any other. The outputs are cut into tiles of 16 (N is padded to a tile). A tile is one
// contiguous stream, `tile_stride` bytes, a multiple of 64, read front to back:
//
//   F32Tile16       for k in 0..K-1:        16 float                                      (lane = output)
//   F16Tile16       for k in 0..K-1:        16 binary16
//   BF16PairTile16  for k in 0,2,4..K-1:    16 x {bfloat16 k, bfloat16 k+1}               (pairs for dot
//   products) U8Tile16Step4   for k in 0,4,8..:       16 x {code k, k+1, k+2, k+3}                  (64
//   bytes) U4Tile16Step8   for k in 0,8,16..:      16 x {byte b = 0..3: low nibble code k+b, high nibble code
//   k+4+b}
//
//   U3Tile16Planes  for k in 0,16,32..:     3 planes of 16 uint16; bit i of a lane's word in plane p is bit p
//   of
//                                           code k+i
//   U2Tile16Planes  the same with 2 planes
//   F8Tile16        for k in 0..K-1:        16 bytes, each a float of 8 bits
//
// Those of fewer than 4 bits and of 8-bit floats are for files: widen() makes of them what kernels read.
//
// Integer codes are stored unsigned: a signed code c of b bits as c + 2^(b-1), its zero point likewise; a
// symmetric scheme therefore has the zero point 2^(b-1) throughout. K is padded to a multiple of 16 with
// codes 0, which count for nothing because kernels pad activations with zeros. Scales and zero points travel
// in the stream:
//
//   Tensor, Channel:  [16 float scales] [asymmetric: 16 int32 zero points] [codes of all K]
//   Group:            for each group: [16 scales, F32 or F16] [asymmetric: 16 uint8 zero points] [codes of
//   the group]
//
// The padding lanes of the last tile hold scale 0, zero point 0 and codes 0. All numbers are little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "ir/quantized_tensor.h"
#include "ir/tensor.h"

namespace quern {

// The numbers are part of the artifact format: append, never renumber.
enum class PackedLayout : uint32_t {
  None = 0,
  F32Tile16 = 1,
  F16Tile16 = 2,
  BF16PairTile16 = 3,
  U8Tile16Step4 = 16,
  U4Tile16Step8 = 17,
  U3Tile16Planes = 18,
  U2Tile16Planes = 19,
  F8Tile16 = 32,
};

std::string_view to_string(PackedLayout layout);

// Everything about a packed weight except its bytes: what a file stores beside them. Cheap to copy.
struct PackedSpec {
  static constexpr int64_t kTile = 16;            // outputs of a tile
  static constexpr int64_t kQuantKMultiple = 16;  // K of integer codes is padded to a multiple of this
  static constexpr int64_t kAlignment = 64;       // of a tile, in bytes

  PackedLayout layout = PackedLayout::None;
  int64_t rows = 0;  // N, outputs
  int64_t cols = 0;  // K, inputs
  // Of the quantized layouts: the scheme of the QuantizedTensor that was packed (Channel: axis 0; Group: axis
  // 1) and the dtype of its scales (F32 or F16). In the stream, Tensor and Channel scales are always float.
  QuantScheme scheme;
  DType scale_dtype = DType::F32;

  // How a float tensor or a quantized one is packed. Throw Error{Unsupported} for what has no layout: codes
  // other than I8, U8, I4, U4 (of 4, 3 or 2 bits), F8E4M3, F8E5M2; scales along another axis; group sizes
  // that are no multiple of 16; float dtypes other than F32, F16, BF16. Error{InvalidArgument} where the
  // shape is not [N, K] with N, K >= 1.
  static PackedSpec for_float(const Shape& shape, DType dtype);
  static PackedSpec for_quantized(const Shape& shape, const QuantScheme& scheme, DType scale_dtype);

  bool is_quantized() const { return layout >= PackedLayout::U8Tile16Step4; }
  // F32, F16 or BF16; the code dtype (I8, U4, ...) of a quantized layout.
  DType dtype() const;
  bool is_grouped() const { return is_quantized() && scheme.granularity == QuantScheme::Granularity::Group; }
  bool has_zero_points() const { return is_quantized() && !scheme.symmetric; }
  int code_bits() const;  // 8, 4, 3 or 2; 0 for floats
  // Whether kernels read the layout as it is; else see widen().
  bool has_kernels() const { return layout <= PackedLayout::U4Tile16Step8; }

  int64_t tiles() const { return (rows + kTile - 1) / kTile; }
  int64_t padded_rows() const { return tiles() * kTile; }
  int64_t padded_cols() const;
  // Inputs that share a scale: the group size (the last group may be shorter), else padded_cols().
  int64_t group() const;
  int64_t groups() const { return (padded_cols() + group() - 1) / group(); }
  int64_t tile_header_bytes() const;   // in front of a tile's first code or group
  int64_t group_header_bytes() const;  // in front of each group's codes; 0 if not grouped
  // From one group to the next, header included; the whole of the codes if not grouped.
  int64_t group_stride() const;
  int64_t tile_stride() const;
  int64_t byte_size() const { return tiles() * tile_stride(); }
  // Everything counted, scales and padding too: 8 * byte_size() / (N * K).
  double bits_per_weight() const;

  // For specs from outside (a file): throws Error{Corrupt} on unknown layouts, nonsense sizes, overflow.
  void check() const;

  bool operator==(const PackedSpec&) const = default;
};

// Immutable, cheap to copy (the bytes are shared), safe to read from several threads.
class PackedTensor {
 public:
  PackedTensor() = default;  // not defined
  // `bytes`: U8, spec.byte_size() elements, possibly a view of a mapped file, aligned to 64 bytes.
  // Throws Error{Corrupt} where spec and bytes do not fit.
  PackedTensor(PackedSpec spec, Tensor bytes);

  bool defined() const { return bytes_.defined(); }
  const PackedSpec& spec() const { return spec_; }
  const Tensor& bytes() const { return bytes_; }
  const std::byte* data() const { return bytes_.bytes(); }
  const std::byte* tile(int64_t t) const { return bytes_.bytes() + t * spec_.tile_stride(); }
  int64_t rows() const { return spec_.rows; }
  int64_t cols() const { return spec_.cols; }
  Shape shape() const { return {spec_.rows, spec_.cols}; }
  int64_t byte_size() const { return bytes_.byte_size(); }

  // Row n of W as floats, bit-equal to dequantize() of the source; out has K elements. A token's embedding,
  // where the embedding and the head share one packed weight. Throws Error{InvalidArgument} for a row out of
  // range.
  void dequantize_row(int64_t n, std::span<float> out) const;
  // All of it, F32 [N, K].
  Tensor dequantize() const;

 private:
  PackedSpec spec_;
  Tensor bytes_;
};

// Packs W [N, K] of dtype F32, F16 or BF16 as itself. Uses all processors for large weights.
PackedTensor pack(const Tensor& weight);
PackedTensor pack(const QuantizedTensor& weight);

// Packs tiles first .. first + count - 1 into `out` (count * spec.tile_stride() bytes): for writers that
// stream a weight to a file without holding all of it. `spec` is for_float / for_quantized of the same
// weight.
void pack_tiles(const PackedSpec& spec, const Tensor& weight, int64_t first, int64_t count,
                std::span<std::byte> out);
void pack_tiles(const PackedSpec& spec, const QuantizedTensor& weight, int64_t first, int64_t count,
                std::span<std::byte> out);

// The same numbers, bit for bit, in a layout that kernels read: codes of 3 and 2 bits as codes of 4, 8-bit
// floats as BF16 if that holds all of them (it does where scales are powers of two), else as F32. The weight
// itself where that is one already.
PackedTensor widen(const PackedTensor& weight);

// The exact inverses of pack(). Throw Error{InvalidArgument} where the tensor is of the other kind.
Tensor unpack(const PackedTensor& packed);
QuantizedTensor unpack_quantized(const PackedTensor& packed);

}  // namespace quern
