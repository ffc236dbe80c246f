// com.microsoft: MultiHeadAttention, Attention and QAttention.
#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/reference/attention.h"
#include "runtime/reference/matmul.h"
#include "runtime/reference/quantization.h"
#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

// What hides a key: -10000 added to its score, by default, so that a row that sees nothing still has a
// softmax.
class PaddingMask {
 public:
  // mask: i32 [B] lengths, [2B] ends then starts, [B, T] or [B, S, T] of 0 and 1; null: nothing hidden.
  PaddingMask(KernelContext& context, const Tensor* mask, int64_t batch, int64_t queries, int64_t keys)
      : mask_(mask), batch_(batch), queries_(queries), keys_(keys) {
    filter_ = context.node().float_attribute("mask_filter_value", -10000.0F);
    if (mask == nullptr) return;
    const Shape& s = mask->shape();
    const bool fits = s == Shape{batch} || s == Shape{2 * batch} || s == Shape{batch, keys} ||
                      s == Shape{batch, queries, keys} || s == Shape{batch, 1};
    if (!fits) context.unsupported("a mask of shape ", to_string(s));
  }
  double at(const AttentionRow& row, int64_t key) const {
    if (mask_ == nullptr) return 0;
    bool keep = true;
    if (mask_->rank() == 1) {
      keep = key < mask_->int_at(row.batch) &&
             (mask_->size() == batch_ || key >= mask_->int_at(batch_ + row.batch));
    } else if (mask_->rank() == 2) {
      keep =
          mask_->dim(1) == keys_ ? mask_->int_at(row.batch * keys_ + key) > 0 : mask_->int_at(row.batch) > 0;
    } else {
      keep = mask_->int_at((row.batch * queries_ + row.query) * keys_ + key) > 0;
    }
    return keep ? 0 : filter_;
  }

 private:
  const Tensor* mask_;
  int64_t batch_, queries_, keys_;
  double filter_;
};

struct Heads {
  Tensor q, k, v;  // [B, H, S or T, D]
  int64_t past = 0;
};

// softmax(scale * q * k^T + masks) * v
std::vector<double> masked_attention(KernelContext& context, const Heads& h, const Tensor* mask,
                                     const Tensor* bias, std::vector<double>* scores_out) {
  const Node& node = context.node();
  const Shape full{h.q.dim(0), h.q.dim(1), h.q.dim(2), h.k.dim(2)};
  const PaddingMask padding(context, mask, full[0], full[2], full[3]);
  Shape strides;
  if (bias != nullptr) {
    if (bias->rank() != 4 || broadcast_shapes(bias->shape(), full) != full) {
      context.fail("an attention bias of shape ", to_string(bias->shape()), " for scores of shape ",
                   to_string(full));
    }
    strides = broadcast_strides(bias->shape(), full);
  }
  const bool causal = node.int_attribute("unidirectional", 0) != 0;
  AttentionSpec spec;
  const float scale = node.float_attribute("scale", 0);
  spec.scale = scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(h.q.dim(3)));
  spec.bias = [&](const AttentionRow& row, int64_t key) {
    if (causal && key > h.past + row.query) return -std::numeric_limits<double>::infinity();
    double sum = padding.at(row, key);
    if (bias != nullptr) {
      sum += bias->at(row.batch * strides[0] + row.head * strides[1] + row.query * strides[2] +
                      key * strides[3]);
    }
    return sum;
  };
  if (scores_out != nullptr) {
    *scores_out = make_buffer<double>(context, full);
    spec.observe = [&, scores_out](int stage, const AttentionRow& row, const std::vector<double>& values) {
      if (stage != 0) return;
      const int64_t start = ((row.batch * full[1] + row.head) * full[2] + row.query) * full[3];
      std::copy(values.begin(), values.end(), scores_out->begin() + start);
    };
  }
  return attend(context, h.q, h.k, h.v, spec);
}

// x + bias[begin : begin + width] along the last axis.
Tensor with_bias(const KernelContext& context, const Tensor& x, const Tensor* bias, int64_t begin) {
  if (x.rank() != 3)
    context.fail("an operand has the shape ", to_string(x.shape()), ", expected 3 dimensions");
  if (bias == nullptr) return x;
  const int64_t width = x.dim(-1);
  if (bias->rank() != 1 || begin + width > bias->size())
    context.fail("a bias of shape ", to_string(bias->shape()));
  const Elements<double> in(x);
  std::vector<double> out(in.begin(), in.end());
  for (int64_t i = 0; i < x.size(); ++i) out[static_cast<size_t>(i)] += bias->at(begin + i % width);
  return to_tensor(x.dtype(), x.shape(), out);
}

// Part `part` of x [B, S, H, parts, D] as [B, S, H*D].
Tensor unpacked(const KernelContext& context, const Tensor& x, int64_t part) {
  if (x.rank() != 5 || x.dim(3) <= part) context.fail("packed operands of shape ", to_string(x.shape()));
  const Shape own = strides_of(x.shape());
  const int64_t b = x.dim(0), s = x.dim(1), h = x.dim(2), d = x.dim(4);
  return strided_copy(context, x, {b, s, h, d}, {own[0], own[1], own[2], 1}, part * d)
      .reshaped({b, s, h * d});
}

Heads read_heads(KernelContext& context) {
  const int64_t heads = context.node().int_attribute("num_heads", 0);
  const Tensor* bias = context.optional_input(3);
  Heads h;
  Tensor q = context.input(0), k, v;
  if (q.rank() == 5) {
    const Tensor packed = q;
    q = unpacked(context, packed, 0);
    k = unpacked(context, packed, 1);
    v = unpacked(context, packed, 2);
  } else if (context.input(1).rank() == 5) {
    k = unpacked(context, context.input(1), 0);
    v = unpacked(context, context.input(1), 1);
  } else {
    k = context.input(1);
    v = context.input(2);
  }
  h.q = split_heads(context, with_bias(context, q, bias, 0), heads);
  if (k.rank() == 4) {  // the cache of a cross attention, used as it is
    h.k = k;
    h.v = v;
    return h;
  }
  h.k = split_heads(context, with_bias(context, k, bias, q.dim(2)), heads);
  h.v = split_heads(context, with_bias(context, v, bias, q.dim(2) + k.dim(2)), heads);
  return h;
}

void run_multi_head_attention(KernelContext& context) {
  if (context.has_input(8) || context.has_input(9)) context.unsupported("a shared cache buffer or beams");
  Heads h = read_heads(context);
  if (context.has_input(6) && context.has_input(7)) {
    if (context.input(6).rank() != 4) context.fail("a past of shape ", to_string(context.input(6).shape()));
    h.past = context.input(6).dim(2);
    h.k = concat_tensors(context, {context.input(6), h.k}, 2);
    h.v = concat_tensors(context, {context.input(7), h.v}, 2);
  }
  std::vector<double> scores;
  const std::vector<double> out =
      masked_attention(context, h, context.optional_input(4), context.optional_input(5),
                       context.wants_output(3) ? &scores : nullptr);
  const Shape shape{h.q.dim(0), h.q.dim(1), h.q.dim(2), h.v.dim(3)};
  context.set_output(0, merge_heads(context, to_tensor(h.q.dtype(), shape, out)));
  if (context.wants_output(1)) context.set_output(1, h.k);
  if (context.wants_output(2)) context.set_output(2, h.v);
  if (context.wants_output(3)) {
    context.set_output(3, to_tensor(h.q.dtype(), {shape[0], shape[1], shape[2], h.k.dim(2)}, scores));
  }
}

// Cuts projected [B, S, Q+K+V] into heads, joins the stacked past [2, B, H, P, D], attends.
void finish_packed(KernelContext& context, const Tensor& projected, const Tensor* mask, const Tensor* past,
                   const Tensor* bias) {
  const Node& node = context.node();
  const int64_t heads = node.int_attribute("num_heads", 0);
  std::vector<int64_t> sizes = node.ints_attribute("qkv_hidden_sizes", {});
  if (sizes.empty()) sizes.assign(3, projected.dim(2) / 3);
  const auto is_part = [&](int64_t size) { return size >= 0 && size <= projected.dim(2); };
  if (sizes.size() != 3 || !std::all_of(sizes.begin(), sizes.end(), is_part) ||
      sizes[0] + sizes[1] + sizes[2] != projected.dim(2)) {
    context.fail("weights of ", projected.dim(2), " columns for queries, keys and values");
  }
  Heads h;
  h.q = split_heads(context, slice_axis(context, projected, 2, 0, sizes[0]), heads);
  h.k = split_heads(context, slice_axis(context, projected, 2, sizes[0], sizes[1]), heads);
  h.v = split_heads(context, slice_axis(context, projected, 2, sizes[0] + sizes[1], sizes[2]), heads);
  if (past != nullptr) {
    if (past->rank() != 5 || past->dim(0) != 2) context.fail("a past of shape ", to_string(past->shape()));
    const Shape half(past->shape().begin() + 1, past->shape().end());
    h.past = past->dim(3);
    h.k = concat_tensors(context, {slice_axis(context, *past, 0, 0, 1).reshaped(half), h.k}, 2);
    h.v = concat_tensors(context, {slice_axis(context, *past, 0, 1, 1).reshaped(half), h.v}, 2);
  }
  const std::vector<double> out = masked_attention(context, h, mask, bias, nullptr);
  const Shape shape{h.q.dim(0), h.q.dim(1), h.q.dim(2), h.v.dim(3)};
  context.set_output(0, merge_heads(context, to_tensor(projected.dtype(), shape, out)));
  if (!context.wants_output(1)) return;
  Shape stacked = h.k.shape();
  stacked.insert(stacked.begin(), 1);
  context.set_output(1, concat_tensors(context, {h.k.reshaped(stacked), h.v.reshaped(stacked)}, 0));
}

// (input, weights, bias?, mask?, past?, attention bias?, past length?)
void run_attention(KernelContext& context) {
  if (context.has_input(6)) context.unsupported("a shared cache buffer");
  if (context.node().int_attribute("do_rotary", 0) != 0) context.unsupported("do_rotary");
  const Tensor product = matmul(context, context.input(0), context.input(1), context.input(0).dtype());
  if (product.rank() != 3) context.fail("the input has the shape ", to_string(context.input(0).shape()));
  finish_packed(context, with_bias(context, product, context.optional_input(2), 0), context.optional_input(3),
                context.optional_input(4), context.optional_input(5));
}

// (input, weights, bias, input_scale, weight_scale, mask?, input_zero?, weight_zero?, past?); scale and zero
// point of the weights per tensor or per column.
void run_quantized_attention(KernelContext& context) {
  if (context.node().int_attribute("do_rotary", 0) != 0) context.unsupported("do_rotary");
  const Tensor x = minus_zero_point(context, context.input(0), context.optional_input(6), -1);
  const Tensor w = minus_zero_point(context, context.input(1), context.optional_input(7), -1);
  const Tensor product = matmul(context, x, w, DType::I64);
  const Tensor& w_scale = context.input(4);
  const int64_t columns = w.dim(-1);
  if (product.rank() != 3 || (w_scale.size() != 1 && w_scale.size() != columns))
    context.fail("shapes do not fit");
  const double x_scale = context.input(3).at(0);
  std::vector<double> real;
  for (int64_t i = 0; i < product.size(); ++i) {
    const double scale = x_scale * w_scale.at(w_scale.size() == 1 ? 0 : i % columns);
    real.push_back(static_cast<double>(product.int_at(i)) * scale);
  }
  const Tensor projected = to_tensor(context.input(3).dtype(), product.shape(), real);
  finish_packed(context, with_bias(context, projected, context.optional_input(2), 0),
                context.optional_input(5), context.optional_input(8), nullptr);
}

}  // namespace

void register_microsoft_multi_head(KernelTable& table) {
  add_microsoft_reference(table, {"MultiHeadAttention"}, run_multi_head_attention);
  add_microsoft_reference(table, {"Attention"}, run_attention);
  add_microsoft_reference(table, {"QAttention"}, run_quantized_attention);
}

}  // namespace quern::runtime::reference
