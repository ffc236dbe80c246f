// Attention, rotary embedding and cache updates of ai.onnx.
#include "runtime/reference/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {

std::vector<double> attend(const KernelContext& context, const Tensor& q, const Tensor& k, const Tensor& v,
                           const AttentionSpec& spec) {
  const bool fits = q.rank() == 4 && k.rank() == 4 && v.rank() == 4 && k.dim(0) == q.dim(0) &&
                    v.dim(0) == q.dim(0) && k.dim(3) == q.dim(3) && k.dim(2) == v.dim(2) &&
                    k.dim(1) == v.dim(1) && k.dim(1) > 0 && q.dim(1) % k.dim(1) == 0;
  if (!fits) {
    context.fail("queries, keys and values of shapes ", to_string(q.shape()), ", ", to_string(k.shape()),
                 ", ", to_string(v.shape()), " do not fit");
  }
  const int64_t heads = q.dim(1), queries = q.dim(2), size = q.dim(3);
  const int64_t kv_heads = k.dim(1), keys = k.dim(2), value_size = v.dim(3);
  const Elements<double> qs(q), ks(k), vs(v);
  std::vector<double> out = make_buffer<double>(context, {q.dim(0), heads, queries, value_size});
  std::vector<double> scores(static_cast<size_t>(keys));
  const auto observe = [&](int stage, const AttentionRow& row) {
    if (spec.observe) spec.observe(stage, row, scores);
  };
  for (int64_t i = 0; i < q.dim(0) * heads * queries; ++i) {
    const AttentionRow row{i / (heads * queries), i / queries % heads, i % queries};
    const int64_t kv = (row.batch * kv_heads + row.head / (heads / kv_heads)) * keys;
    for (int64_t t = 0; t < keys; ++t) {
      double sum = 0;
      for (int64_t d = 0; d < size; ++d) sum += qs[i * size + d] * ks[(kv + t) * size + d];
      scores[static_cast<size_t>(t)] = sum * spec.scale;
    }
    observe(0, row);
    if (spec.softcap > 0) {
      for (double& score : scores) score = spec.softcap * std::tanh(score / spec.softcap);
    }
    observe(1, row);
    bool any_visible = !spec.bias && keys > 0;
    if (spec.bias) {
      for (int64_t t = 0; t < keys; ++t) {
        const double bias = spec.bias(row, t);
        // Not score + bias: an infinite score must not turn a hidden key into NaN.
        double& score = scores[static_cast<size_t>(t)];
        const bool hidden = std::isinf(bias) && bias < 0;
        score = hidden ? bias : score + bias;
        any_visible = any_visible || !hidden;
      }
    }
    observe(2, row);
    double most = -std::numeric_limits<double>::infinity();
    for (const double score : scores) most = std::max(most, score);
    if (spec.sinks != nullptr) most = std::max(most, spec.sinks[row.head]);
    double total = spec.sinks != nullptr ? std::exp(spec.sinks[row.head] - most) : 0;
    for (double& score : scores) {
      score = any_visible ? std::exp(score - most) : 0;
      total += score;
    }
    for (double& score : scores) {
      if (any_visible) score /= total;
      if (spec.round_probability) score = spec.round_probability(score);
    }
    observe(3, row);
    double* result = out.data() + i * value_size;
    for (int64_t t = 0; t < keys; ++t) {
      const double weight = scores[static_cast<size_t>(t)];
      if (weight == 0) continue;
      for (int64_t d = 0; d < value_size; ++d) result[d] += weight * vs[(kv + t) * value_size + d];
    }
  }
  return out;
}

Tensor split_heads(const KernelContext& context, const Tensor& x, int64_t heads) {
  if (x.rank() != 3 || heads < 1 || x.dim(2) % heads != 0) {
    context.fail("a tensor of shape ", to_string(x.shape()), " does not split into ", heads, " heads");
  }
  const int64_t size = x.dim(2) / heads;
  return strided_copy(context, x, {x.dim(0), heads, x.dim(1), size},
                      {x.dim(1) * x.dim(2), size, x.dim(2), 1});
}

Tensor merge_heads(const KernelContext& context, const Tensor& x) {
  const int64_t heads = x.dim(1), length = x.dim(2), size = x.dim(3);
  return strided_copy(context, x, {x.dim(0), length, heads, size},
                      {heads * length * size, size, length * size, 1})
      .reshaped({x.dim(0), length, heads * size});
}

Tensor rotate(const KernelContext& context, const Tensor& x, const Tensor& cos, const Tensor& sin,
              bool interleaved, const std::function<int64_t(int64_t, int64_t)>& row) {
  const int64_t half = cos.rank() > 0 ? cos.dim(-1) : -1;
  const int64_t size = x.dim(3);
  if (half < 0 || cos.shape() != sin.shape() || 2 * half > size) {
    context.fail("caches of shapes ", to_string(cos.shape()), " and ", to_string(sin.shape()),
                 " for heads of size ", size);
  }
  const int64_t rows = half == 0 ? 0 : cos.size() / half;
  const Elements<double> in(x), c(cos), s(sin);
  std::vector<double> out(in.begin(), in.end());
  for (int64_t token = 0; token < x.dim(0) * x.dim(1) * x.dim(2); ++token) {
    const int64_t at = row(token / (x.dim(1) * x.dim(2)), token % x.dim(2));
    if (half > 0 && (at < 0 || at >= rows))
      context.fail("position ", at, " is outside a cache of ", rows, " rows");
    for (int64_t i = 0; i < half; ++i) {
      const int64_t first = token * size + (interleaved ? 2 * i : i);
      const int64_t second = token * size + (interleaved ? 2 * i + 1 : i + half);
      const double cosine = c[at * half + i];
      const double sine = s[at * half + i];
      out[static_cast<size_t>(first)] = in[first] * cosine - in[second] * sine;
      out[static_cast<size_t>(second)] = in[second] * cosine + in[first] * sine;
    }
  }
  return to_tensor(x.dtype(), x.shape(), out);
}

namespace {

// The mask's last dimension may be short: what is missing is hidden.
struct Mask {
  Tensor tensor;
  Shape strides;  // by batch, head, query, key
  int64_t keys = 0;

  Mask(const KernelContext& context, const Tensor& mask, const Shape& scores)
      : tensor(mask), keys(mask.dim(-1)) {
    Shape full = scores;
    full.back() = keys;
    if (mask.rank() > 4 || keys > scores.back() || broadcast_shapes(mask.shape(), full) != full) {
      context.fail("a mask of shape ", to_string(mask.shape()), " for scores of shape ", to_string(scores));
    }
    strides = broadcast_strides(mask.shape(), full);
  }
  double at(const AttentionRow& row, int64_t key) const {
    if (key >= keys) return -std::numeric_limits<double>::infinity();
    const int64_t i =
        row.batch * strides[0] + row.head * strides[1] + row.query * strides[2] + key * strides[3];
    if (tensor.dtype() != DType::Bool) return tensor.at(i);
    return tensor.int_at(i) != 0 ? 0 : -std::numeric_limits<double>::infinity();
  }
};

void run_attention(KernelContext& context) {
  const Node& node = context.node();
  const bool flat = context.input(0).rank() == 3;
  Tensor q = context.input(0), k = context.input(1), v = context.input(2);
  if (flat) {
    q = split_heads(context, q, node.int_attribute("q_num_heads", 0));
    k = split_heads(context, k, node.int_attribute("kv_num_heads", 0));
    v = split_heads(context, v, node.int_attribute("kv_num_heads", 0));
  }
  if (q.rank() != 4 || k.rank() != 4 || v.rank() != 4)
    context.fail("Q, K and V must all have rank 3, or all rank 4");
  if (context.has_input(4) != context.has_input(5)) context.fail("past_key and past_value come together");
  int64_t offset = 0;
  if (context.has_input(4)) {
    if (context.has_input(6)) context.fail("nonpad_kv_seqlen and past_key exclude one another");
    if (context.input(4).rank() != 4) context.fail("past_key of shape ", to_string(context.input(4).shape()));
    offset = context.input(4).dim(2);
    k = concat_tensors(context, {context.input(4), k}, 2);
    v = concat_tensors(context, {context.input(5), v}, 2);
  }
  const Tensor* lengths = context.optional_input(6);
  if (lengths != nullptr && lengths->size() != q.dim(0))
    context.fail("nonpad_kv_seqlen needs one length per batch");
  const Shape scores{q.dim(0), q.dim(1), q.dim(2), k.dim(2)};
  std::optional<Mask> mask;
  if (context.has_input(3)) {
    if (context.input(3).rank() < 1) context.fail("the mask is a scalar");
    mask.emplace(context, context.input(3), scores);
  }

  const bool causal = node.int_attribute("is_causal", 0) != 0;
  const int64_t left = node.int_attribute("left_window_size", -1);
  const int64_t right = node.int_attribute("right_window_size", -1);
  AttentionSpec spec;
  spec.scale =
      node.float_attribute("scale", static_cast<float>(1.0 / std::sqrt(static_cast<double>(q.dim(3)))));
  spec.softcap = node.float_attribute("softcap", 0);
  spec.bias = [&](const AttentionRow& row, int64_t key) {
    constexpr double kHidden = -std::numeric_limits<double>::infinity();
    const int64_t length = lengths != nullptr ? lengths->int_at(row.batch) : scores[3];
    if (key >= length) return kHidden;
    // Positions are aligned at the end: the last query stands at the last key that is no padding.
    const int64_t position = row.query + (lengths != nullptr ? length - scores[2] : offset);
    if (causal && key > position) return kHidden;
    if (left >= 0 && key < position - left) return kHidden;
    if (right >= 0 && key > position + right) return kHidden;
    return mask ? mask->at(row, key) : 0.0;
  };
  // Stage by mode: 0 scaled, 1 after the cap, 2 after the mask, 3 after the softmax (ONNX 1.23 and ONNX
  // Runtime; up to 1.22 the reference applied the mask before the cap and numbered 1 and 2 the other way
  // round).
  const int stage = static_cast<int>(node.int_attribute("qk_matmul_output_mode", 0));
  std::vector<double> observed;
  if (context.wants_output(3)) {
    observed = make_buffer<double>(context, scores);
    spec.observe = [&](int at, const AttentionRow& row, const std::vector<double>& values) {
      if (at != stage) return;
      const int64_t start = ((row.batch * scores[1] + row.head) * scores[2] + row.query) * scores[3];
      std::copy(values.begin(), values.end(), observed.begin() + start);
    };
  }
  std::vector<double> sinks;
  if (const Tensor* given = context.optional_input(7)) {  // of ai.quern alone
    if (given->shape() != Shape{q.dim(1)}) context.fail("sinks of shape ", to_string(given->shape()));
    for (int64_t i = 0; i < given->size(); ++i) sinks.push_back(given->at(i));
    spec.sinks = sinks.data();
  }
  const std::vector<double> out = attend(context, q, k, v, spec);
  const Tensor y = to_tensor(q.dtype(), {q.dim(0), q.dim(1), q.dim(2), v.dim(3)}, out);
  context.set_output(0, flat ? merge_heads(context, y) : y);
  if (context.wants_output(1)) context.set_output(1, k);
  if (context.wants_output(2)) context.set_output(2, v);
  if (context.wants_output(3)) context.set_output(3, to_tensor(q.dtype(), scores, observed));
}

// (X, cos, sin, position_ids?): caches [rows, R/2] with positions, [B, S, R/2] without.
void run_rotary_embedding(KernelContext& context) {
  const Node& node = context.node();
  const bool flat = context.input(0).rank() == 3;
  const Tensor x =
      flat ? split_heads(context, context.input(0), node.int_attribute("num_heads", 0)) : context.input(0);
  if (x.rank() != 4) context.fail("the input has the shape ", to_string(x.shape()));
  Tensor cos = context.input(1), sin = context.input(2);
  const int64_t rotary = node.int_attribute("rotary_embedding_dim", 0);
  if (cos.rank() < 1) context.fail("the caches are scalars");
  if (rotary != 0 && cos.dim(-1) != rotary / 2) {
    context.fail("rotary_embedding_dim is ", rotary, ", the caches have ", cos.dim(-1), " columns");
  }
  const Tensor* positions = context.optional_input(3);
  if (positions != nullptr && positions->shape() != Shape{x.dim(0), x.dim(2)}) {
    context.fail("position_ids of shape ", to_string(positions->shape()));
  }
  if (positions == nullptr && (cos.rank() != 3 || cos.dim(0) != x.dim(0) || cos.dim(1) != x.dim(2))) {
    context.fail("without position_ids the caches must be [batch, sequence, half], found ",
                 to_string(cos.shape()));
  }
  const Tensor y =
      rotate(context, x, cos, sin, node.int_attribute("interleaved", 0) != 0, [&](int64_t b, int64_t s) {
        const int64_t at = b * x.dim(2) + s;
        return positions != nullptr ? positions->int_at(at) : at;
      });
  context.set_output(0, flat ? merge_heads(context, y) : y);
}

// Writes update into past along an axis (-2), at a position per batch; mode "circular" wraps round.
void run_tensor_scatter(KernelContext& context) {
  const Tensor& past = context.input(0);
  const Tensor& update = context.input(1);
  const Node& node = context.node();
  const auto axis = static_cast<size_t>(normalize_axis(context, node.int_attribute("axis", -2), past.rank()));
  const bool circular = node.string_attribute("mode", "linear") == "circular";
  const Tensor* starts = context.optional_input(2);
  Shape expected = past.shape();
  if (axis == 0 || update.rank() != past.rank()) context.fail("the axis is the batch axis, or ranks differ");
  expected[axis] = update.shape()[axis];
  if (update.shape() != expected || expected[axis] > past.shape()[axis]) {
    context.fail("an update of shape ", to_string(update.shape()), " for a cache of shape ",
                 to_string(past.shape()));
  }
  if (starts != nullptr && starts->size() != past.dim(0))
    context.fail("write_indices needs one position per batch");
  const int64_t length = past.shape()[axis];
  const int64_t inner = strides_of(past.shape())[axis];
  const int64_t per_batch = update.size() == 0 ? 1 : update.size() / update.dim(0);
  std::vector<int64_t> sources(static_cast<size_t>(past.size()));
  for (int64_t i = 0; i < past.size(); ++i) sources[static_cast<size_t>(i)] = i;
  for (int64_t i = 0; i < update.size(); ++i) {
    const int64_t start = starts != nullptr ? starts->int_at(i / per_batch) : 0;
    const int64_t row = i / inner % expected[axis];
    if (start < 0 || start > length - (circular ? 0 : expected[axis]))
      context.fail("a write index is ", start);
    const int64_t at = (start + row) % length;
    const int64_t outer = i / (inner * expected[axis]);
    sources[static_cast<size_t>((outer * length + at) * inner + i % inner)] = past.size() + i;
  }
  context.set_output(0, gather_elements(context, {past, update}, past.shape(), sources));
}

}  // namespace

void register_attention(KernelTable& table) {
  add_reference(table, {"Attention"}, run_attention);
  table.add(kQuernDomain, "Attention", {std::string(kReferenceImplementation), 1, run_attention, nullptr});
  add_reference(table, {"RotaryEmbedding"}, run_rotary_embedding);
  add_reference(table, {"TensorScatter"}, run_tensor_scatter);
}

}  // namespace quern::runtime::reference
