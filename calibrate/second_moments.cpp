#include "calibrate/second_moments.h"

#include <algorithm>
#include <cstring>

#include "ir/error.h"
#include "ir/packed_tensor.h"
#include "runtime/cpu/linear.h"
#include "runtime/cpu/thread_team.h"

namespace quern::calibrate {

struct MomentSummer::Impl {
  explicit Impl(int threads) : team(threads), scratch(team.size()) {}
  cpu::ThreadTeam team;
  cpu::LinearScratch scratch;
  std::vector<float> product;
  std::vector<float> transposed;
};

namespace {

void transpose(const std::vector<float>& x, int64_t rows, int64_t cols, float* out) {
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t r = 0; r < rows; ++r) out[c * rows + r] = x[static_cast<size_t>(r * cols + c)];
  }
}

}  // namespace

MomentSummer::MomentSummer(int threads) : impl_(std::make_unique<Impl>(threads)) {}
MomentSummer::~MomentSummer() = default;

void MomentSummer::add(const std::vector<float>& a, const std::vector<float>& b, int64_t rows,
                       SquareMatrix& sum) {
  const int64_t n = sum.size;
  if (rows == 0 || n == 0) return;
  if (static_cast<int64_t>(a.size()) != rows * n || a.size() != b.size()) {
    throw_error(ErrorCode::Internal, "moments of ", a.size(), " and ", b.size(), " activations in ", rows,
                " rows of ", n);
  }
  // y = x W^T with x = a^T [n, rows] and W = b^T [n, rows].
  Tensor weight = Tensor::zeros(DType::F32, {n, rows});
  transpose(b, rows, n, weight.mutable_data<float>().data());
  const PackedTensor packed = pack(weight);
  impl_->transposed.resize(a.size());
  transpose(a, rows, n, impl_->transposed.data());
  impl_->product.resize(static_cast<size_t>(n * n));
  const cpu::ActivationFormat format = cpu::activation_format(packed.spec(), cpu::ActivationMode::A16);
  Tensor memory = Tensor::zeros(DType::U8, {cpu::Activations::byte_size(format, n)});
  const cpu::Activations input =
      cpu::Activations::place(format, n, {memory.mutable_bytes(), static_cast<size_t>(memory.byte_size())});
  input.encode(impl_->transposed.data(), rows, impl_->team);
  const cpu::LinearOp op{
      .weight = &packed, .input = &input, .y = impl_->product.data(), .y_stride = n, .rows = n};
  cpu::linear({&op, 1}, impl_->team, impl_->scratch);
  for (size_t i = 0; i < sum.elements.size(); ++i) sum.elements[i] += static_cast<double>(impl_->product[i]);
}

std::vector<float> copy_rows(const ActivationRows& rows) {
  std::vector<float> out(static_cast<size_t>(rows.rows * rows.width));
  for (int64_t r = 0; r < rows.rows; ++r) {
    std::memcpy(out.data() + r * rows.width, rows.data + r * rows.stride,
                static_cast<size_t>(rows.width) * sizeof(float));
  }
  return out;
}

}  // namespace quern::calibrate
