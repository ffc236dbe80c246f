#include "runtime/cpu/linear.h"

#include <algorithm>
#include <new>

#include "runtime/cpu/dispatch.h"
#include "runtime/cpu/linear_dispatch.h"

namespace quern::cpu {

QUERN_DECLARE_KERNELS(LinearKernels, linear_kernels_of)

namespace {

WeightView view_of(const PackedTensor& packed) {
  const PackedSpec& spec = packed.spec();
  WeightKind kind = WeightKind::F32;
  switch (spec.layout) {
    case PackedLayout::F16Tile16:
      kind = WeightKind::F16;
      break;
    case PackedLayout::BF16PairTile16:
      kind = WeightKind::BF16;
      break;
    case PackedLayout::U8Tile16Step4:
      kind = WeightKind::U8;
      break;
    case PackedLayout::U4Tile16Step8:
      kind = WeightKind::U4;
      break;
    default:
      break;
  }
  return {.data = packed.data(),
          .kind = kind,
          .grouped = spec.is_grouped(),
          .zero_points = spec.has_zero_points(),
          .half_scales = spec.is_grouped() && spec.scale_dtype == DType::F16,
          .rows = spec.rows,
          .cols = spec.padded_cols(),
          .group = spec.group(),
          .tile_stride = spec.tile_stride(),
          .group_stride = spec.group_stride(),
          .tile_header = spec.tile_header_bytes(),
          .group_header = spec.group_header_bytes()};
}

LinearTask task_of(const LinearOp& op) {
  const Activations& input = *op.input;
  return {.weight = view_of(*op.weight),
          .up = view_of(op.up != nullptr ? *op.up : *op.weight),
          .gated = op.up != nullptr,
          .input = {.kind = static_cast<InputKind>(input.format.code),
                    .codes = input.codes,
                    .row_stride = input.format.row_stride(),
                    .info = input.info,
                    .rows = input.rows,
                    .block = input.format.block},
          .bias = op.bias,
          .up_bias = op.up_bias,
          .activation = op.activation,
          .row_scale = op.row_scale,
          .residual = op.residual,
          .residual_stride = op.residual_stride,
          .y = op.y,
          .y_stride = op.y_stride,
          .input_rows = op.input_rows,
          .output_rows = op.output_rows};
}

void run_tiles(const LinearOp& op, const TileRange& range, std::byte* scratch) {
  if (range.tile_begin >= range.tile_end || range.row_begin >= range.row_end) return;
  if (op.input->reference) return linear_reference(op, range);
  linear_kernels(op.input->isa).tiles(task_of(op), range, scratch);
}

int64_t tiles_of(const LinearOp& op) {
  return op.weight->spec().tiles();
}

// What a tile of the product costs, roughly: its bytes, or from some rows on its arithmetic.
int64_t tile_cost(const LinearOp& op) {
  constexpr int64_t kFreeRows = 4;
  const int64_t bytes = op.weight->spec().tile_stride() * (op.up != nullptr ? 2 : 1);
  return bytes * std::max(op.rows, kFreeRows);
}

// Threads as a grid: `row_parts` times `threads / row_parts`. Rows are cut only where there are too few tiles
// to go round and enough rows that reading the weights once per part does not matter.
int row_parts_of(std::span<const LinearOp> ops, int threads) {
  constexpr int64_t kTilesPerThread = 8;
  constexpr int64_t kRowsPerPart = 32;
  int64_t tiles = 0;
  int64_t rows = 0;
  for (const LinearOp& op : ops) {
    tiles += tiles_of(op);
    rows = std::max(rows, op.rows);
  }
  int parts = 1;
  while (threads % (parts * 2) == 0 && tiles * parts < kTilesPerThread * threads &&
         rows >= kRowsPerPart * 2 * parts) {
    parts *= 2;
  }
  return parts;
}

// The first tile of `op` at or past `cost`, where the product begins at `before`.
int64_t tile_at(int64_t cost, int64_t before, const LinearOp& op) {
  if (cost <= before) return 0;
  const int64_t each = tile_cost(op);
  return std::min(tiles_of(op), (cost - before + each / 2) / each);
}

}  // namespace

const LinearKernels& linear_kernels(Isa isa) {
  return linear_kernels_of(isa);
}

LinearScratch::LinearScratch(int threads) : threads_(threads) {
  void* memory =
      ::operator new (static_cast<size_t>(threads * kBytesPerThread), std::align_val_t{64}, std::nothrow);
  if (memory == nullptr)
    throw_error(ErrorCode::OutOfMemory, "no memory for the scratch of ", threads, " threads");
  memory_.reset(static_cast<std::byte*>(memory));
}

void LinearScratch::Free::operator()(std::byte* p) const {
  ::operator delete (p, std::align_val_t{64});
}

void linear(std::span<const LinearOp> ops, int thread, int threads, LinearScratch& scratch,
            LinearPartition partition) {
  const int row_parts = row_parts_of(ops, threads);
  const int tile_parts = threads / row_parts;
  const int row_part = thread / tile_parts;
  const int tile_part = thread % tile_parts;
  const auto rows_of = [&](const LinearOp& op, int64_t tile_begin, int64_t tile_end) {
    const Range rows = part_of(op.rows, row_part, row_parts);
    return TileRange{tile_begin, tile_end, rows.begin, rows.end};
  };
  if (partition == LinearPartition::InOrder || ops.size() == 1) {
    for (const LinearOp& op : ops) {
      const Range tiles = part_of(tiles_of(op), tile_part, tile_parts);
      run_tiles(op, rows_of(op, tiles.begin, tiles.end), scratch.of(thread));
    }
    return;
  }
  int64_t total = 0;
  for (const LinearOp& op : ops) total += tiles_of(op) * tile_cost(op);
  const Range mine = part_of(total, tile_part, tile_parts);
  int64_t before = 0;
  for (const LinearOp& op : ops) {
    const int64_t begin = tile_at(mine.begin, before, op);
    const int64_t end = tile_part + 1 == tile_parts ? tiles_of(op) : tile_at(mine.end, before, op);
    run_tiles(op, rows_of(op, begin, end), scratch.of(thread));
    before += tiles_of(op) * tile_cost(op);
  }
}

void linear(std::span<const LinearOp> ops, ThreadTeam& team, LinearScratch& scratch,
            LinearPartition partition) {
  team.run([&](int thread) { linear(ops, thread, team.size(), scratch, partition); });
}

void check_linear(const LinearOp& op) {
  if (op.weight == nullptr || !op.weight->defined() || op.input == nullptr || op.y == nullptr) {
    throw_error(ErrorCode::InvalidArgument, "a product without weight, input or output");
  }
  const PackedSpec& spec = op.weight->spec();
  const ActivationFormat& format = op.input->format;
  if (format.cols != spec.cols || format.padded_cols != spec.padded_cols()) {
    throw_error(ErrorCode::InvalidArgument, "a product of inputs of ", format.cols,
                " columns with a weight of shape ", quern::to_string(op.weight->shape()));
  }
  const bool integers = format.block != 0;
  if (!op.input->reference && integers != spec.is_quantized()) {
    throw_error(ErrorCode::InvalidArgument, "the inputs of a product with ", quern::to_string(spec.layout),
                " weights were encoded for another kind");
  }
  if (integers && (spec.group() % format.block != 0 && spec.is_grouped())) {
    throw_error(ErrorCode::InvalidArgument, "inputs with scales per ", format.block,
                " columns do not fit weights with groups of ", spec.group());
  }
  if (op.up != nullptr && (!op.up->defined() || op.up->spec() != spec)) {
    throw_error(ErrorCode::InvalidArgument, "gate and up weights differ in shape or format");
  }
  if (op.rows < 0 || (op.rows > op.input->rows && op.input_rows == nullptr)) {
    throw_error(ErrorCode::InvalidArgument, "a product of ", op.rows, " rows; the input has ",
                op.input->rows);
  }
  const bool one_row = op.rows <= 1 && op.output_rows == nullptr;
  if (!one_row && (op.y_stride < spec.rows || (op.residual != nullptr && op.residual_stride < spec.rows))) {
    throw_error(ErrorCode::InvalidArgument, "output rows of ", spec.rows, " elements at a stride of ",
                op.y_stride);
  }
  for (int64_t i = 0; op.input_rows != nullptr && i < op.rows; ++i) {
    if (op.input_rows[i] < 0 || op.input_rows[i] >= op.input->rows) {
      throw_error(ErrorCode::InvalidArgument, "row ", op.input_rows[i], " of an input of ", op.input->rows,
                  " rows");
    }
  }
}

std::string_view linear_implementation(const Activations& input) {
  return input.reference ? "reference" : to_string(input.isa);
}

}  // namespace quern::cpu
