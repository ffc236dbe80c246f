// com.microsoft: GroupQueryAttention and RotaryEmbedding.
#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/reference/attention.h"
#include "runtime/reference/normalization.h"
#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

constexpr double kHidden = -std::numeric_limits<double>::infinity();

// (x, position_ids [1] or [B, S], cos [M, R/2], sin): unlike ai.onnx's, the positions come second. One
// position alone is an offset.
void run_rotary_embedding(KernelContext& context) {
  const Node& node = context.node();
  const bool flat = context.input(0).rank() == 3;
  const Tensor& cos = context.input(2);
  const Tensor& sin = context.input(3);
  if (cos.rank() != 2) context.fail("a cache of shape ", to_string(cos.shape()));
  if (node.int_attribute("is_packed_batching", 0) != 0) context.unsupported("packed batches");
  int64_t heads = node.int_attribute("num_heads", 0);
  if (flat && node.int_attribute("rotary_embedding_dim", 0) == 0) {
    const int64_t size = 2 * cos.dim(1);
    heads = size == 0 ? 0 : context.input(0).dim(2) / size;
  }
  const Tensor x = flat ? split_heads(context, context.input(0), heads) : context.input(0);
  if (x.rank() != 4) context.fail("the input has the shape ", to_string(context.input(0).shape()));
  const Tensor& positions = context.input(1);
  const bool offset = positions.size() == 1;
  if (!offset && positions.shape() != Shape{x.dim(0), x.dim(2)}) {
    context.fail("position_ids of shape ", to_string(positions.shape()));
  }
  const Tensor y =
      rotate(context, x, cos, sin, node.int_attribute("interleaved", 0) != 0, [&](int64_t b, int64_t s) {
        return offset ? positions.int_at(0) + s : positions.int_at(b * x.dim(2) + s);
      });
  context.set_output(0, flat ? merge_heads(context, y) : y);
}

struct Gqa {
  int64_t heads, kv_heads, size, batch, length;
  Tensor q, k, v;              // [B, heads, S, D]
  std::vector<int64_t> past;   // rows of the cache that count, by batch
  std::vector<int64_t> total;  // of past and new keys, by batch
  int64_t buffer = 0;          // rows of the cache that comes out
};

void read_queries(KernelContext& context, Gqa& g) {
  const Node& node = context.node();
  g.heads = node.int_attribute("num_heads", 0);
  g.kv_heads = node.int_attribute("kv_num_heads", 0);
  const Tensor& query = context.input(0);
  if (query.rank() != 3 || g.heads < 1 || g.kv_heads < 1 || g.heads % g.kv_heads != 0) {
    context.fail("a query of shape ", to_string(query.shape()), " for ", g.heads, " heads and ", g.kv_heads,
                 " key-value heads");
  }
  g.batch = query.dim(0);
  g.length = query.dim(1);
  if (context.has_input(1)) {
    g.q = split_heads(context, query, g.heads);
    g.k = split_heads(context, context.input(1), g.kv_heads);
    g.v = split_heads(context, context.input(2), g.kv_heads);
  } else {
    const Tensor all = split_heads(context, query, g.heads + 2 * g.kv_heads);
    g.q = slice_axis(context, all, 1, 0, g.heads);
    g.k = slice_axis(context, all, 1, g.heads, g.kv_heads);
    g.v = slice_axis(context, all, 1, g.heads + g.kv_heads, g.kv_heads);
  }
  g.size = g.q.dim(3);
}

// seqlens_k is the count of valid keys minus one. A first prompt (as long as the total) ignores what the
// cache holds.
void read_lengths(KernelContext& context, Gqa& g) {
  const Tensor& seqlens = context.input(5);
  const int64_t total = int_scalar(context, 6);
  const bool first_prompt = g.length == total;
  if (context.has_input(3) && context.input(3).rank() != 4) {
    context.fail("a past of shape ", to_string(context.input(3).shape()));
  }
  const int64_t capacity = context.has_input(3) ? context.input(3).dim(2) : 0;
  if (seqlens.size() != g.batch) context.fail("seqlens_k of shape ", to_string(seqlens.shape()));
  const int64_t fresh = g.k.dim(2);
  for (int64_t b = 0; b < g.batch; ++b) {
    const int64_t valid = seqlens.int_at(b) + 1;
    const int64_t past = fresh == 0 ? valid : first_prompt ? 0 : valid - g.length;
    if (valid < 0 || past < 0 || past > std::max(capacity, int64_t{0})) {
      context.fail("seqlens_k says ", valid, " keys for ", g.length, " new ones and a cache of ", capacity);
    }
    g.past.push_back(past);
    g.total.push_back(valid);
  }
  g.buffer = std::max(total, capacity);
}

// RMS norm of each head's features, before the rotary embedding.
Tensor normed(KernelContext& context, const Tensor& x, size_t weight) {
  if (!context.has_input(weight)) return x;
  const double epsilon = context.node().float_attribute("qk_norm_epsilon", 1e-6F);
  const NormResult rows = normalize_rows(context, x, x.dim(3), false, epsilon);
  return scale_and_shift(context, to_tensor(x.dtype(), x.shape(), rows.values), context.input(weight),
                         nullptr);
}

void rotate_queries(KernelContext& context, Gqa& g) {
  const Node& node = context.node();
  if (node.int_attribute("do_rotary", 0) == 0) return;
  const bool interleaved = node.int_attribute("rotary_interleaved", 0) != 0;
  const Tensor* positions = context.optional_input(9);
  const bool first_prompt = g.length == int_scalar(context, 6);
  const auto row = [&](int64_t b, int64_t s) {
    if (positions == nullptr) return g.past[static_cast<size_t>(b)] + s;
    // Of a first prompt only the first position is read, as an offset.
    if (first_prompt) return positions->int_at(0) + s;
    return positions->int_at(b * g.length + s);
  };
  g.q = rotate(context, g.q, context.input(7), context.input(8), interleaved, row);
  if (g.k.dim(2) > 0) g.k = rotate(context, g.k, context.input(7), context.input(8), interleaved, row);
}

// The cache with the new rows written behind the past ones.
Tensor updated_cache(KernelContext& context, const Gqa& g, size_t past_input, const Tensor& fresh) {
  const Tensor* past = context.optional_input(past_input);
  const int64_t width = fresh.dim(3);
  if (past != nullptr &&
      (past->rank() != 4 || past->dim(0) != g.batch || past->dim(1) != g.kv_heads || past->dim(3) != width)) {
    context.fail("a cache of shape ", to_string(past->shape()), " for new rows of shape ",
                 to_string(fresh.shape()));
  }
  const int64_t rows = fresh.dim(2);
  std::vector<Tensor> parts{fresh, context.make(fresh.dtype(), {1})};
  if (past != nullptr) parts.push_back(*past);
  const Shape shape{g.batch, g.kv_heads, g.buffer, width};
  std::vector<int64_t> sources(static_cast<size_t>(context.checked_count(fresh.dtype(), shape)),
                               fresh.size());
  for (int64_t i = 0; i < static_cast<int64_t>(sources.size()); ++i) {
    const int64_t d = i % width, t = i / width % g.buffer, plane = i / (width * g.buffer);
    const int64_t start = g.past[static_cast<size_t>(plane / g.kv_heads)];
    if (t < start && past != nullptr) {
      sources[static_cast<size_t>(i)] = fresh.size() + 1 + (plane * past->dim(2) + t) * width + d;
    } else if (t >= start && t < start + rows) {
      sources[static_cast<size_t>(i)] = (plane * rows + t - start) * width + d;
    }
  }
  return gather_elements(context, parts, shape, sources);
}

void run_group_query_attention(KernelContext& context) {
  const Node& node = context.node();
  for (const char* kind : {"k_quant_type", "v_quant_type"}) {
    if (node.string_attribute(kind, "NONE") != "NONE") context.unsupported("a quantized cache");
  }
  if (node.int_attribute("sliding_window_cache", 0) != 0) context.unsupported("a cache that slides");
  Gqa g{};
  read_queries(context, g);
  read_lengths(context, g);
  g.q = normed(context, g.q, 14);
  g.k = normed(context, g.k, 15);
  rotate_queries(context, g);
  const Tensor keys = updated_cache(context, g, 3, g.k);
  const Tensor values = updated_cache(context, g, 4, g.v);
  std::optional<Tensor> bias;
  Shape bias_strides;
  if (context.has_input(10)) {
    bias = context.input(10);
    const Shape full{g.batch, g.heads, g.length, bias->rank() == 4 ? bias->dim(3) : 0};
    if (bias->rank() != 4 || broadcast_shapes(bias->shape(), full) != full) {
      context.fail("an attention bias of shape ", to_string(bias->shape()));
    }
    bias_strides = broadcast_strides(bias->shape(), full);
  }
  const int64_t window = node.int_attribute("local_window_size", -1);
  const bool causal = node.int_attribute("causal", 1) != 0;
  AttentionSpec spec;
  const float scale = node.float_attribute("scale", 0);
  spec.scale = scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(g.size));
  spec.softcap = node.float_attribute("softcap", 0);
  spec.bias = [&](const AttentionRow& row, int64_t key) {
    const auto b = static_cast<size_t>(row.batch);
    const int64_t position = g.past[b] + row.query - (g.k.dim(2) == 0 ? g.length : 0);
    const int64_t end = causal ? std::min(position + 1, g.total[b]) : g.total[b];
    // The window counts the current token.
    if (key >= end || (window > 0 && key < position + 1 - window)) return kHidden;
    if (!bias || key >= bias->dim(3)) return 0.0;
    return bias->at(row.batch * bias_strides[0] + row.head * bias_strides[1] + row.query * bias_strides[2] +
                    key * bias_strides[3]);
  };
  std::vector<double> sinks;
  if (context.has_input(11)) {
    const Elements<double> given(context.input(11));
    sinks.assign(given.begin(), given.end());
    if (static_cast<int64_t>(sinks.size()) != g.heads) context.fail("head_sink needs one number per head");
  } else if (node.int_attribute("smooth_softmax", 0) != 0) {
    sinks.assign(static_cast<size_t>(g.heads), 0.0);
  }
  if (!sinks.empty()) spec.sinks = sinks.data();
  if (context.wants_output(3)) context.unsupported("the output of scores");
  const std::vector<double> out = attend(context, g.q, keys, values, spec);
  context.set_output(
      0, merge_heads(context, to_tensor(g.q.dtype(), {g.batch, g.heads, g.length, g.v.dim(3)}, out)));
  context.set_output(1, keys);
  context.set_output(2, values);
}

}  // namespace

void register_microsoft_attention(KernelTable& table) {
  add_microsoft_reference(table, {"RotaryEmbedding"}, run_rotary_embedding);
  add_microsoft_reference(table, {"GroupQueryAttention"}, run_group_query_attention);
}

}  // namespace quern::runtime::reference
