// What linear.cpp and the kernel files say to each other: plain structs, views of what PackedTensor,
// Activations and LinearOp hold.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/cpu/unary.h"

namespace quern::cpu {

enum class WeightKind : uint8_t { F32, F16, BF16, U8, U4 };
enum class InputKind : uint8_t { F32, BF16, S16Pairs, S8, S8HiLo };

// A PackedTensor (ir/packed_tensor.h describes the streams).
struct WeightView {
  const std::byte* data;
  WeightKind kind;
  bool grouped;
  bool zero_points;
  bool half_scales;      // of groups
  int64_t rows;          // N
  int64_t cols;          // K, padded
  int64_t group;         // columns; cols if not grouped
  int64_t tile_stride;   // bytes
  int64_t group_stride;  // bytes
  int64_t tile_header;   // bytes
  int64_t group_header;  // bytes
};

// What turns the integer sum of a row's block into a number.
struct BlockInfo {
  float scale;     // of the inputs
  int32_t offset;  // minus the sum of the block's codes: what a unit of the weights' zero point adds
};

struct InputView {
  InputKind kind;
  const std::byte* codes;
  int64_t row_stride;     // bytes
  const BlockInfo* info;  // [blocks, rows]: rows side by side, for a micro-kernel takes a few neighbours
  int64_t rows;
  int64_t block;  // columns
};

struct LinearTask {
  WeightView weight;
  WeightView up;
  bool gated;
  InputView input;
  // As in LinearOp.
  const float* bias;
  const float* up_bias;
  Unary activation;
  const float* row_scale;
  const float* residual;
  int64_t residual_stride;
  float* y;
  int64_t y_stride;
  const int32_t* input_rows;
  const int32_t* output_rows;
};

struct EncodeTask {
  InputKind kind;
  const float* x;
  int64_t x_stride;
  int64_t cols;
  int64_t padded_cols;
  float largest_code;  // 127 or 32639
  std::byte* codes;
  int64_t row_stride;
  BlockInfo* info;  // as in InputView
  int64_t rows;
  int64_t block;
};

struct TileRange {
  int64_t tile_begin, tile_end;
  int64_t row_begin, row_end;
};

struct LinearKernels {
  // The outputs of a range of tiles for a range of the task's rows. `scratch`:
  // LinearScratch::kBytesPerThread.
  void (*tiles)(const LinearTask& task, const TileRange& range, std::byte* scratch);
  void (*encode)(const EncodeTask& task, int64_t first, int64_t count);
};

}  // namespace quern::cpu
