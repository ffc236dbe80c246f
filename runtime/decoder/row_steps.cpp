#include "runtime/decoder/row_steps.h"

#include <cmath>
#include <cstring>

#include "ir/float_types.h"
#include "runtime/decoder/sequence_state.h"

namespace quern::runtime {
namespace {

size_t bytes_of(const Operand& at) {
  return static_cast<size_t>(at.width) * sizeof(float);
}

void copy_features(const float* from, float* to, const Operand& at) {
  if (from != to) std::memcpy(to, from, bytes_of(at));
}

}  // namespace

EmbeddingStep::EmbeddingStep(Table table, bool by_position, Operand out)
    : table_(std::move(table)), by_position_(by_position), out_(out) {
  kind = "embedding";
  writes = {out};
  const auto* tensor = std::get_if<Tensor>(&table_);
  rows_ = tensor != nullptr ? tensor->dim(0) : std::get<PackedTensor>(table_).rows();
}

void EmbeddingStep::run_row(const Pass& pass, int64_t row) const {
  float* out = pass.view(out_)[row];
  const int64_t index = by_position_ ? pass.positions[row] : pass.ids[row];
  if (const auto* packed = std::get_if<PackedTensor>(&table_)) {
    packed->dequantize_row(index, {out, static_cast<size_t>(out_.width)});
    return;
  }
  const Tensor& table = std::get<Tensor>(table_);
  const int64_t first = index * out_.width;
  if (table.dtype() == DType::F32) {
    std::memcpy(out, reinterpret_cast<const float*>(table.bytes()) + first, bytes_of(out_));
    return;
  }
  const auto* halves = reinterpret_cast<const uint16_t*>(table.bytes()) + first;
  const bool is_f16 = table.dtype() == DType::F16;
  for (int64_t i = 0; i < out_.width; ++i) out[i] = is_f16 ? f16_to_f32(halves[i]) : bf16_to_f32(halves[i]);
}

NormStep::NormStep(const cpu::RowKernels& kernels, const Options& options, const Operands& operands)
    : kernels_(kernels), options_(options), at_(operands) {
  kind = "norm";
  reads = {at_.x};
  if (at_.skip.defined()) reads.push_back(at_.skip);
  for (const Operand& out : {at_.out, at_.sum, at_.mean, at_.inverse_std}) {
    if (out.defined()) writes.push_back(out);
  }
}

void NormStep::run_row(const Pass& pass, int64_t row) const {
  const auto at = [&](const Operand& operand) {
    return operand.defined() ? pass.view(operand)[row] : nullptr;
  };
  const float* x = at(at_.x);
  const float* skip = at(at_.skip);
  float* out = at(at_.out);
  float* sum = at(at_.sum);
  for (int64_t first = 0, group = 0; first < at_.x.width; first += options_.size, ++group) {
    cpu::NormRow norm;
    norm.x = x + first;
    norm.skip = skip != nullptr ? skip + first : nullptr;
    norm.bias = options_.bias;
    norm.weight = options_.weight;
    norm.shift = options_.shift;
    norm.sum = sum != nullptr ? sum + first : nullptr;
    norm.out = out + first;
    norm.size = options_.size;
    norm.epsilon = options_.epsilon;
    (options_.layer ? kernels_.layer_norm : kernels_.rms_norm)(norm);
    if (at_.mean.defined()) at(at_.mean)[group] = norm.mean;
    if (at_.inverse_std.defined()) at(at_.inverse_std)[group] = norm.inverse_std;
  }
}

UnaryStep::UnaryStep(const cpu::RowKernels& kernels, cpu::Unary op, Operand x, Operand y)
    : kernels_(kernels), op_(op), x_(x), y_(y) {
  kind = "activation";
  reads = {x};
  writes = {y};
}

void UnaryStep::run_row(const Pass& pass, int64_t row) const {
  kernels_.unary(op_, pass.view(x_)[row], pass.view(y_)[row], y_.width);
}

BinaryStep::BinaryStep(const cpu::RowKernels& kernels, cpu::BinaryOp op, Side a, Side b, Operand y,
                       int64_t group)
    : kernels_(kernels), op_(op), a_(a), b_(b), y_(y), group_(group) {
  kind = "elementwise";
  for (const Side& side : {a, b}) {
    if (side.rows.defined()) reads.push_back(side.rows);
  }
  writes = {y};
}

void BinaryStep::run_row(const Pass& pass, int64_t row) const {
  const auto at = [&](const Side& side) -> const float* {
    return side.rows.defined() ? pass.view(side.rows)[row] : side.vector;
  };
  const float* a = at(a_);
  const float* b = at(b_);
  float* y = pass.view(y_)[row];
  if (a_.kind == Side::Kind::Scalar) return kernels_.scalar_binary(op_, a_.scalar, b, y, y_.width);
  if (b_.kind == Side::Kind::Scalar) return kernels_.binary_scalar(op_, a, b_.scalar, y, y_.width);
  if (a_.kind != Side::Kind::Spread && b_.kind != Side::Kind::Spread)
    return kernels_.binary(op_, a, b, y, y_.width);
  for (int64_t first = 0, group = 0; first < y_.width; first += group_, ++group) {
    if (a_.kind == Side::Kind::Spread) {
      kernels_.scalar_binary(op_, a[group], b + first, y + first, group_);
    } else {
      kernels_.binary_scalar(op_, a + first, b[group], y + first, group_);
    }
  }
}

GatedStep::GatedStep(const cpu::RowKernels& kernels, cpu::Unary op, Operand gate, Operand up, Operand y)
    : kernels_(kernels), op_(op), gate_(gate), up_(up), y_(y) {
  kind = "activation";
  reads = {gate, up};
  writes = {y};
}

void GatedStep::run_row(const Pass& pass, int64_t row) const {
  kernels_.activate_multiply(op_, pass.view(gate_)[row], pass.view(up_)[row], pass.view(y_)[row], y_.width);
}

SoftmaxStep::SoftmaxStep(const cpu::RowKernels& kernels, int64_t size, Operand x, Operand y)
    : kernels_(kernels), size_(size), x_(x), y_(y) {
  kind = "softmax";
  reads = {x};
  writes = {y};
}

void SoftmaxStep::run_row(const Pass& pass, int64_t row) const {
  const float* x = pass.view(x_)[row];
  float* y = pass.view(y_)[row];
  for (int64_t i = 0; i < x_.width; i += size_) kernels_.softmax(x + i, y + i, size_);
}

ReduceStep::ReduceStep(const cpu::RowKernels& kernels, cpu::ReduceOp op, int64_t size, Operand x, Operand y)
    : kernels_(kernels), op_(op), size_(size), x_(x), y_(y) {
  kind = "reduce";
  reads = {x};
  writes = {y};
}

void ReduceStep::run_row(const Pass& pass, int64_t row) const {
  const float* x = pass.view(x_)[row];
  float* y = pass.view(y_)[row];
  for (int64_t i = 0; i < y_.width; ++i) y[i] = kernels_.reduce(op_, x + i * size_, size_);
}

CopyStep::CopyStep(Operand x, Operand y) : x_(x), y_(y) {
  kind = "copy";
  reads = {x};
  writes = {y};
}

void CopyStep::run_row(const Pass& pass, int64_t row) const {
  copy_features(pass.view(x_)[row], pass.view(y_)[row], y_);
}

SelectRowsStep::SelectRowsStep(Operand x, Operand y) : x_(x), y_(y) {
  kind = "select_rows";
  space = Space::Selected;
  // Its rows come from wherever they are.
  row_local = false;
  reads = {x};
  writes = {y};
}

void SelectRowsStep::run(const Pass& pass, int thread) const {
  const cpu::Range range = cpu::part_of(pass.selected, thread, pass.threads);
  for (int64_t i = range.begin; i < range.end; ++i) {
    copy_features(pass.view(x_)[pass.selected_rows[i]], pass.view(y_)[i], y_);
  }
}

RotaryTableStep::RotaryTableStep(Frequencies frequencies, Operand out)
    : frequencies_(std::move(frequencies)), out_(out) {
  kind = "rotary_table";
  writes = {out};
}

void RotaryTableStep::run(const Pass& pass, int thread) const {
  const cpu::Range range = cpu::part_of(pass.tokens, thread, pass.threads);
  const int64_t pairs = static_cast<int64_t>(frequencies_.base.size());
  for (const Piece& piece : pass.pieces) {
    const bool extended = piece.sequence->long_rotary && !frequencies_.extended.empty();
    const std::vector<float>& frequencies = extended ? frequencies_.extended : frequencies_.base;
    const float scale = extended ? frequencies_.extended_scale : frequencies_.scale;
    const int64_t end = std::min(range.end, piece.first_row + piece.rows);
    for (int64_t row = std::max(range.begin, piece.first_row); row < end; ++row) {
      float* out = pass.view(out_)[row];
      const float position = static_cast<float>(pass.positions[row]);
      for (int64_t i = 0; i < pairs; ++i) {
        // In float, as the models were trained.
        const float angle = position * frequencies[static_cast<size_t>(i)];
        out[i] = std::cos(angle) * scale;
        out[pairs + i] = std::sin(angle) * scale;
      }
    }
  }
}

void rotate_row(const cpu::RowKernels& kernels, const RotarySpec& spec, const float* angles, float* x,
                int64_t heads) {
  cpu::RotaryRow row;
  row.x = x;
  row.cos = angles;
  row.sin = angles + spec.rotary_size / 2;
  row.heads = heads;
  row.head_size = spec.head_size;
  row.rotary_size = spec.rotary_size;
  row.interleaved = spec.interleaved;
  kernels.rotate(row);
}

RotaryStep::RotaryStep(const cpu::RowKernels& kernels, const RotarySpec& spec, Operand x, Operand y)
    : kernels_(kernels), spec_(spec), x_(x), y_(y) {
  kind = "rotary";
  reads = {x, spec.table};
  writes = {y};
}

void RotaryStep::run_row(const Pass& pass, int64_t row) const {
  float* y = pass.view(y_)[row];
  copy_features(pass.view(x_)[row], y, y_);
  rotate_row(kernels_, spec_, pass.view(spec_.table)[row], y, y_.width / spec_.head_size);
}

}  // namespace quern::runtime
