// Products with packed weights: y = x W^T, for one row (decode) to thousands (prefill).
//
// A row's result is the same, bit for bit, whatever rows are computed beside it, in whatever order, by
// however many threads: float weights add up K sequentially for each output (fused multiply-adds); integer
// weights add exact integer block sums, scaled, in ascending order of blocks. Different instruction sets may
// differ in the last bits.
//
//   const ActivationFormat format = activation_format(w.spec(), ActivationMode::A16);
//   Activations input = Activations::place(format, rows, arena);
//   input.encode(x, k, team);
//   LinearOp op{.weight = &w, .input = &input, .y = y, .y_stride = n, .rows = rows};
//   linear({&op, 1}, team, scratch);
//
// Several products in one call share one parallel region: q, k and v; the experts that this batch of tokens
// met.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "ir/packed_tensor.h"
#include "runtime/cpu/activations.h"
#include "runtime/cpu/thread_team.h"
#include "runtime/cpu/unary.h"

namespace quern::cpu {

// One product and what follows it. With W [N, K], for each row i < rows, with i' = input_rows ? input_rows[i]
// : i and o = output_rows ? output_rows[i] : i:
//
//   v    = activation(W x[i'] + bias)                          plain
//   v    = activation(W x[i'] + bias) * (U x[i'] + up_bias)    with `up` (SwiGLU, GeGLU: W is the gate)
//   y[o] = v * row_scale[i] + residual[o]
//
// Everything is borrowed for the call. y may be the residual itself; it must not overlap anything else.
struct LinearOp {
  const PackedTensor* weight = nullptr;
  const PackedTensor* up = nullptr;    // of the same shape and format as weight
  const Activations* input = nullptr;  // of activation_format(weight->spec(), ...), encoded
  const float* bias = nullptr;         // [N]
  const float* up_bias = nullptr;      // [N]
  Unary activation = Unary::Identity;
  const float* row_scale = nullptr;  // [rows]: a router's weight of an expert
  const float* residual = nullptr;   // row o at residual + o * residual_stride
  int64_t residual_stride = 0;       // elements
  float* y = nullptr;                // row o at y + o * y_stride
  int64_t y_stride = 0;
  int64_t rows = 0;
  const int32_t* input_rows = nullptr;   // [rows], a list of x's rows (tokens of an expert)
  const int32_t* output_rows = nullptr;  // [rows], distinct
};

enum class LinearPartition : uint8_t {
  // The outputs of all products together are dealt out by their cost. The products' y must not overlap.
  Together,
  // Each product's outputs are dealt out in the same way, and a thread does its share of the products in
  // order:
  // products of one shape may then add to the same y (residual = y), one after another, without a race.
  InOrder,
};

// Memory that kernels work in, one piece per thread. Allocate once, reuse for every call.
class LinearScratch {
 public:
  static constexpr int64_t kBytesPerThread = 256 * 1024;
  explicit LinearScratch(int threads);
  std::byte* of(int thread) const { return memory_.get() + thread * kBytesPerThread; }
  int threads() const { return threads_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  int threads_;
  std::unique_ptr<std::byte, Free> memory_;
};

// Whether shapes, strides, formats and pointers fit: Error{InvalidArgument} says what does not. linear()
// itself does not check; call this where a plan is made.
void check_linear(const LinearOp& op);

// All threads of the team, one region.
void linear(std::span<const LinearOp> ops, ThreadTeam& team, LinearScratch& scratch,
            LinearPartition partition = LinearPartition::Together);
// One thread's share, for use inside a region that does more. Every thread 0 .. threads - 1 must call it with
// the same arguments. No barrier before or after: inputs must be encoded, and y is complete when all have
// returned.
void linear(std::span<const LinearOp> ops, int thread, int threads, LinearScratch& scratch,
            LinearPartition partition = LinearPartition::Together);

// Which kernels linear() uses for this input: "reference", "portable", "avx2", ...
std::string_view linear_implementation(const Activations& input);

}  // namespace quern::cpu
