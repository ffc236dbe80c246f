// Scaled dot-product attention, which operators of several domains share.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "ir/tensor.h"
#include "runtime/kernel_context.h"

namespace quern::runtime::reference {

// One query row against all keys of its head, in double.
struct AttentionRow {
  int64_t batch, head, query;
};

struct AttentionSpec {
  double scale = 1;
  double softcap = 0;  // c * tanh(score / c) before the bias; 0: none
  // What is added to a score after the cap; -infinity hides the key. Null: nothing.
  std::function<double(const AttentionRow&, int64_t key)> bias;
  // A logit in the denominator alone, per head. Null: none.
  const double* sinks = nullptr;
  // Called with each stage of the scores: 0 after the scaling, 1 after the cap, 2 after the bias, 3 after the
  // softmax. Null: nobody asks.
  std::function<void(int stage, const AttentionRow&, const std::vector<double>& row)> observe;
  // Rounds probabilities to the type of V before the product with it. Null: not rounded.
  std::function<double(double)> round_probability;
};

// q [B, H, S, D], k [B, K, T, D], v [B, K, T, E] -> [B, H, S, E]; head h reads key-value head h / (H / K). A
// row that sees no key at all gives zeros. Fails, naming the node, where the shapes do not fit.
std::vector<double> attend(const KernelContext& context, const Tensor& q, const Tensor& k, const Tensor& v,
                           const AttentionSpec& spec);

// [B, S, heads*D] to [B, heads, S, D] and back.
Tensor split_heads(const KernelContext& context, const Tensor& x, int64_t heads);
Tensor merge_heads(const KernelContext& context, const Tensor& x);

// Rotary embedding (Su et al., arXiv 2104.09864) of the first 2 * cos.dim(-1) features of x [B, H, S, D], or
// of the first `rotary_dim`; row(b, s) tells which row of the caches [rows, R/2] serves a token. Pairs (i, i
// + R/2), or (2i, 2i+1) if interleaved.
Tensor rotate(const KernelContext& context, const Tensor& x, const Tensor& cos, const Tensor& sin,
              bool interleaved, const std::function<int64_t(int64_t batch, int64_t position)>& row);

}  // namespace quern::runtime::reference
