// Attention of ai.onnx; MultiHeadAttention and Attention of com.microsoft. What is out of the ordinary, and
// every mistake, is the reference's.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "runtime/cpu/row_kernels.h"
#include "runtime/plain/attend.h"
#include "runtime/plain/multiplier.h"
#include "runtime/plain/onednn.h"
#include "runtime/plain/register.h"
#include "runtime/reference/strided.h"

namespace quern::runtime::plain {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// Rows of heads within some tensor's floats.
struct Heads {
  const float* data = nullptr;
  HeadStrides at;
  int64_t count = 0, rows = 0, size = 0;
};

// x [B, S, heads * size] (heads given) or [B, heads, S, size]. Nothing where it is neither.
std::optional<Heads> heads_of(const Tensor& x, int64_t heads) {
  Heads h{.data = x.data<float>().data()};
  if (x.rank() == 4) {
    h.count = x.dim(1);
    h.rows = x.dim(2);
    h.size = x.dim(3);
    h.at = split_heads(h.count, h.rows, h.size);
    return h;
  }
  if (x.rank() != 3 || heads < 1 || x.dim(2) % heads != 0) return std::nullopt;
  h.count = heads;
  h.rows = x.dim(1);
  h.size = x.dim(2) / heads;
  h.at = flat_heads(h.rows, x.dim(2), h.size);
  return h;
}

// past [B, heads, P, size] with the new rows behind, as a tensor of its own. Nothing where they do not fit.
std::optional<Tensor> with_past(const KernelContext& context, const Tensor& past, const Heads& fresh,
                                int64_t batch) {
  if (past.rank() != 4 || past.dtype() != DType::F32 || past.dim(0) != batch || past.dim(1) != fresh.count ||
      past.dim(3) != fresh.size) {
    return std::nullopt;
  }
  const int64_t old = past.dim(2), size = fresh.size;
  Tensor all = context.make(DType::F32, {batch, fresh.count, old + fresh.rows, size});
  float* to = all.mutable_data<float>().data();
  const float* from = past.data<float>().data();
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < fresh.count; ++h) {
      to = std::copy_n(from, old * size, to);
      from += old * size;
      const float* row = fresh.data + b * fresh.at.batch + h * fresh.at.head;
      for (int64_t r = 0; r < fresh.rows; ++r) to = std::copy_n(row + r * fresh.at.row, size, to);
    }
  }
  return all;
}

// The same rows as [B, heads, S, size].
Tensor as_present(const KernelContext& context, const Heads& heads, int64_t batch) {
  return *with_past(context, Tensor::zeros(DType::F32, {batch, heads.count, 0, heads.size}), heads, batch);
}

// A mask or bias over scores [B, H, S, T] as floats that live as long as this. Nothing where it does not
// broadcast, or only along the keys.
struct Bias {
  std::vector<float> own;
  ScoreBias view;
};
bool read_bias(const Tensor& mask, const Shape& scores, bool short_keys, Bias& out) {
  if (mask.rank() < 1 || mask.rank() > 4) return false;
  const int64_t keys = mask.dim(-1);
  if (keys != scores[3] && !(short_keys && keys < scores[3])) return false;
  Shape full = scores;
  full.back() = keys;
  if (broadcast_shapes(mask.shape(), full) != full) return false;
  const Shape strides = reference::broadcast_strides(mask.shape(), full);
  const float* data = nullptr;
  if (mask.dtype() == DType::Bool) {
    for (int64_t i = 0; i < mask.size(); ++i) out.own.push_back(mask.int_at(i) != 0 ? 0.0F : kHidden);
    data = out.own.data();
  } else {
    data = mask.data<float>().data();
  }
  out.view = {.data = data, .at = {strides[0], strides[1], strides[2]}, .keys = keys};
  return true;
}

AttendTask task_of(const Heads& q, const Heads& k, const Heads& v, int64_t batch) {
  return {.batch = batch,
          .heads = q.count,
          .kv_heads = k.count,
          .queries = q.rows,
          .keys = k.rows,
          .size = q.size,
          .value_size = v.size,
          .q = q.data,
          .k = k.data,
          .v = v.data,
          .q_at = q.at,
          .k_at = k.at,
          .v_at = v.at};
}

bool fit(const Heads& q, const Heads& k, const Heads& v) {
  return k.count > 0 && q.count % k.count == 0 && v.count == k.count && k.rows == v.rows && q.size == k.size;
}

// Whether input i is given as f32 elements.
bool is_floats(const KernelContext& context, size_t i) {
  const Tensor* tensor = context.has_input(i) ? context.value(i).tensor() : nullptr;
  return tensor != nullptr && tensor->dtype() == DType::F32 && tensor->size() != 0;
}

// --- ai.onnx -------------------------------------------------------------------------------------------

// (Q, K, V, mask?, past_key?, past_value?, nonpad_kv_seqlen?)
bool takes_attention(const KernelContext& context) {
  if (!is_floats(context, 0) || !is_floats(context, 1) || !is_floats(context, 2)) return false;
  if (context.has_input(3)) {
    const Tensor* mask = context.value(3).tensor();
    if (mask == nullptr || (mask->dtype() != DType::F32 && mask->dtype() != DType::Bool)) return false;
  }
  return !context.wants_output(3);
}

// Which keys a query may see for its place alone. `lengths`: of each batch; empty: all keys.
std::function<KeyRange(int64_t, int64_t)> visible_keys(const Node& node, const std::vector<int64_t>& lengths,
                                                       int64_t queries, int64_t keys, int64_t past) {
  constexpr int64_t kFar = int64_t{1} << 40;  // so that sums do not overflow
  const bool causal = node.int_attribute("is_causal", 0) != 0;
  const int64_t left = std::min(node.int_attribute("left_window_size", -1), kFar);
  const int64_t right = std::min(node.int_attribute("right_window_size", -1), kFar);
  if (!causal && left < 0 && right < 0 && lengths.empty()) return nullptr;
  return [=](int64_t batch, int64_t query) {
    const int64_t length = lengths.empty() ? keys : lengths[static_cast<size_t>(batch)];
    // Positions are aligned at the end.
    const int64_t position = query + (lengths.empty() ? past : length - queries);
    KeyRange range{0, std::min(length, keys)};
    if (causal) range.end = std::min(range.end, position + 1);
    if (right >= 0) range.end = std::min(range.end, position + right + 1);
    if (left >= 0) range.first = std::max<int64_t>(0, position - left);
    return range;
  };
}

void run_attention(KernelContext& context) {
  const Node& node = context.node();
  const bool flat = context.input(0).rank() == 3;
  const auto q = heads_of(context.input(0), node.int_attribute("q_num_heads", 0));
  auto k = heads_of(context.input(1), node.int_attribute("kv_num_heads", 0));
  auto v = heads_of(context.input(2), node.int_attribute("kv_num_heads", 0));
  if (!q || !k || !v) return run_reference(context);
  const int64_t batch = context.input(0).dim(0);
  if (context.input(1).dim(0) != batch || context.input(2).dim(0) != batch ||
      context.has_input(4) != context.has_input(5) || (context.has_input(4) && context.has_input(6))) {
    return run_reference(context);
  }
  std::optional<Tensor> keys, values;
  int64_t past = 0;
  if (context.has_input(4)) {
    keys = with_past(context, context.input(4), *k, batch);
    values = with_past(context, context.input(5), *v, batch);
    if (!keys || !values) return run_reference(context);
    past = context.input(4).dim(2);
    k = heads_of(*keys, 0);
    v = heads_of(*values, 0);
  }
  std::vector<int64_t> lengths;
  if (context.has_input(6)) {
    if (!is_integer(context.dtype(6)) || context.input(6).size() != batch) return run_reference(context);
    for (const int64_t length : context.input(6).to_ints())
      lengths.push_back(std::clamp<int64_t>(length, 0, k->rows));
  }
  if (!fit(*q, *k, *v)) return run_reference(context);
  AttendTask task = task_of(*q, *k, *v, batch);
  Bias mask;
  if (context.has_input(3)) {
    if (!read_bias(context.input(3), {batch, q->count, q->rows, k->rows}, true, mask))
      return run_reference(context);
    task.biases.push_back(mask.view);
  }
  task.scale =
      node.float_attribute("scale", static_cast<float>(1.0 / std::sqrt(static_cast<double>(q->size))));
  task.softcap = node.float_attribute("softcap", 0);
  task.visible = visible_keys(node, lengths, q->rows, k->rows, past);
  Tensor y = context.make(DType::F32, flat ? Shape{batch, q->rows, q->count * v->size}
                                           : Shape{batch, q->count, q->rows, v->size});
  task.out = y.mutable_data<float>().data();
  task.out_at =
      flat ? flat_heads(q->rows, q->count * v->size, v->size) : split_heads(q->count, q->rows, v->size);
  attend(task);
  context.set_output(0, std::move(y));
  if (context.wants_output(1)) context.set_output(1, keys ? *keys : as_present(context, *k, batch));
  if (context.wants_output(2)) context.set_output(2, values ? *values : as_present(context, *v, batch));
}

// --- com.microsoft -------------------------------------------------------------------------------------

// What a padding mask adds to the scores: i32 [B] lengths, [2B] ends then starts, [B, T], [B, 1] or
// [B, S, T] of 0 and 1.
bool read_padding(const Node& node, const Tensor& mask, const Shape& scores, Bias& out) {
  const int64_t batch = scores[0], queries = scores[2], keys = scores[3];
  const Shape& s = mask.shape();
  const float filter = node.float_attribute("mask_filter_value", -10000.0F);
  const auto add = [&](bool keep) { out.own.push_back(keep ? 0.0F : filter); };
  out.view = {.at = {keys, 0, 0}, .keys = keys};
  if (s == Shape{batch, queries, keys}) {
    out.view.at = {queries * keys, 0, keys};
    for (int64_t i = 0; i < mask.size(); ++i) add(mask.int_at(i) > 0);
  } else if (s == Shape{batch, keys}) {
    for (int64_t i = 0; i < mask.size(); ++i) add(mask.int_at(i) > 0);
  } else if (s == Shape{batch} || s == Shape{2 * batch}) {
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t start = s[0] == batch ? 0 : mask.int_at(batch + b);
      for (int64_t key = 0; key < keys; ++key) add(key < mask.int_at(b) && key >= start);
    }
  } else {
    return false;
  }
  // Where nothing is kept, the same is added to all scores, which changes no softmax but would round them.
  for (auto row = out.own.begin(); row != out.own.end(); row += keys) {
    if (std::find(row, row + keys, 0.0F) == row + keys) std::fill(row, row + keys, 0.0F);
  }
  out.view.data = out.own.data();
  return true;
}

// Masks, scale and output of both operators. False: for the reference.
bool attend_masked(KernelContext& context, AttendTask task, const Tensor* padding, const Tensor* bias) {
  const Node& node = context.node();
  const Shape scores{task.batch, task.heads, task.queries, task.keys};
  Bias hidden, added;
  if (padding != nullptr) {
    if (!read_padding(node, *padding, scores, hidden)) return false;
    task.biases.push_back(hidden.view);
  }
  if (bias != nullptr) {
    if (bias->rank() != 4 || !read_bias(*bias, scores, false, added)) return false;
    task.biases.push_back(added.view);
  }
  const float scale = node.float_attribute("scale", 0);
  task.scale = scale != 0 ? scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(task.size)));
  if (node.int_attribute("unidirectional", 0) != 0) {
    const int64_t past = task.keys - task.queries;
    task.visible = [past](int64_t, int64_t query) { return KeyRange{0, past + query + 1}; };
  }
  const int64_t width = task.heads * task.value_size;
  Tensor y = context.make(DType::F32, {task.batch, task.queries, width});
  task.out = y.mutable_data<float>().data();
  task.out_at = flat_heads(task.queries, width, task.value_size);
  attend(task);
  context.set_output(0, std::move(y));
  return true;
}

// x + bias[begin : begin + width] along the last axis.
Tensor with_bias(const KernelContext& context, const Tensor& x, const float* bias) {
  Tensor y = context.make(DType::F32, x.shape());
  const int64_t width = x.dim(-1);
  const float* from = x.data<float>().data();
  float* to = y.mutable_data<float>().data();
  for (int64_t i = 0; i < x.size(); i += width)
    cpu::row_kernels().binary(cpu::BinaryOp::Add, from + i, bias, to + i, width);
  return y;
}

// (query, key, value, bias?, key_padding_mask?, attention_bias?, past_key?, past_value?)
bool takes_multi_head(const KernelContext& context) {
  if (!is_floats(context, 0) || !is_floats(context, 1) || !is_floats(context, 2)) return false;
  for (const size_t i : {size_t{3}, size_t{5}}) {
    if (context.has_input(i) && !is_floats(context, i)) return false;
  }
  if (context.has_input(4) && context.value(4).tensor() == nullptr) return false;
  return !context.has_input(8) && !context.has_input(9) && !context.wants_output(3);
}

void run_multi_head(KernelContext& context) {
  const int64_t heads = context.node().int_attribute("num_heads", 0);
  Tensor query = context.input(0), key = context.input(1), value = context.input(2);
  const Tensor* bias = context.optional_input(3);
  const bool cached = key.rank() == 4;  // the cache of a cross attention, used as it is
  const int64_t batch = query.rank() == 3 ? query.dim(0) : 0;
  if (batch == 0 || (key.rank() != 3 && !cached) || value.rank() != key.rank() || key.dim(0) != batch ||
      value.dim(0) != batch || context.has_input(6) != context.has_input(7) ||
      (cached && context.has_input(6))) {
    return run_reference(context);
  }
  if (bias != nullptr) {
    const int64_t expected = query.dim(2) + (cached ? 0 : key.dim(2) + value.dim(2));
    if (bias->rank() != 1 || bias->size() < expected) return run_reference(context);
    const float* addend = bias->data<float>().data();
    query = with_bias(context, query, addend);
    if (!cached) {
      key = with_bias(context, key, addend + query.dim(2));
      value = with_bias(context, value, addend + query.dim(2) + key.dim(2));
    }
  }
  const auto q = heads_of(query, heads);
  auto k = heads_of(key, heads), v = heads_of(value, heads);
  if (!q || !k || !v) return run_reference(context);
  std::optional<Tensor> keys, values;
  if (context.has_input(6)) {
    keys = with_past(context, context.input(6), *k, batch);
    values = with_past(context, context.input(7), *v, batch);
    if (!keys || !values) return run_reference(context);
    k = heads_of(*keys, 0);
    v = heads_of(*values, 0);
  }
  const bool unidirectional = context.node().int_attribute("unidirectional", 0) != 0;
  const int64_t past = keys ? context.input(6).dim(2) : 0;
  if (!fit(*q, *k, *v) || (unidirectional && k->rows != past + q->rows)) return run_reference(context);
  if (!attend_masked(context, task_of(*q, *k, *v, batch), context.optional_input(4),
                     context.optional_input(5))) {
    return run_reference(context);
  }
  if (context.wants_output(1)) context.set_output(1, keys ? *keys : as_present(context, *k, batch));
  if (context.wants_output(2)) context.set_output(2, values ? *values : as_present(context, *v, batch));
}

// (input, weights, bias?, mask?, past?, attention bias?, past length?)
bool takes_packed(const KernelContext& context) {
  if (!is_floats(context, 0) || !is_floats(context, 1)) return false;
  for (const size_t i : {size_t{2}, size_t{5}}) {
    if (context.has_input(i) && !is_floats(context, i)) return false;
  }
  if (context.has_input(3) && context.value(3).tensor() == nullptr) return false;
  return !context.has_input(4) && !context.has_input(6) && !context.wants_output(1) &&
         context.node().int_attribute("do_rotary", 0) == 0;
}

void run_packed(KernelContext& context) {
  const Node& node = context.node();
  const Tensor& x = context.input(0);
  const Tensor& weights = context.input(1);
  const Tensor* bias = context.optional_input(2);
  const int64_t heads = node.int_attribute("num_heads", 0);
  if (x.rank() != 3 || weights.rank() != 2 || weights.dim(0) != x.dim(2) || heads < 1 ||
      (bias != nullptr && bias->shape() != Shape{weights.dim(1)})) {
    return run_reference(context);
  }
  const int64_t batch = x.dim(0), length = x.dim(1), width = weights.dim(1);
  std::vector<int64_t> sizes = node.ints_attribute("qkv_hidden_sizes", {});
  if (sizes.empty()) sizes.assign(3, width / 3);
  for (const int64_t size : sizes) {
    if (size < heads || size > width || size % heads != 0) return run_reference(context);
  }
  if (sizes.size() != 3 || sizes[0] + sizes[1] + sizes[2] != width || sizes[0] != sizes[1])
    return run_reference(context);
  Tensor projected = context.make(DType::F32, {batch, length, width});
  with_onednn(context, [&] {
    multiply(Product{.m = batch * length, .k = x.dim(2), .n = width, .bias = bias != nullptr},
             x.data<float>().data(), weights.data<float>().data(), projected.mutable_data<float>().data(),
             bias != nullptr ? bias->data<float>().data() : nullptr);
  });
  const float* data = projected.data<float>().data();
  const auto part = [&](int64_t begin, int64_t columns) {
    const int64_t size = columns / heads;
    return Heads{.data = data + begin,
                 .at = flat_heads(length, width, size),
                 .count = heads,
                 .rows = length,
                 .size = size};
  };
  const AttendTask task =
      task_of(part(0, sizes[0]), part(sizes[0], sizes[1]), part(sizes[0] + sizes[1], sizes[2]), batch);
  if (!attend_masked(context, task, context.optional_input(3), context.optional_input(5)))
    run_reference(context);
}

}  // namespace

void register_attention(KernelTable& table) {
  const auto add = [&](std::string_view domain, std::string_view op, KernelFunction run,
                       bool (*accepts)(const KernelContext&), int since = 1) {
    table.add(domain, op, {std::string(kImplementation), since, run, accepts});
  };
  add(kOnnxDomain, "Attention", run_attention, takes_attention, 23);
  add(kMicrosoftDomain, "MultiHeadAttention", run_multi_head, takes_multi_head);
  add(kMicrosoftDomain, "Attention", run_packed, takes_packed);
}

}  // namespace quern::runtime::plain
