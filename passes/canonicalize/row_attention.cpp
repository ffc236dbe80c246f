// RowBuilder: attention over a cache, and rotary embeddings on the way to it.
#include <algorithm>
#include <cmath>

#include "ir/schema.h"
#include "passes/canonicalize/match.h"
#include "passes/canonicalize/row_builder.h"
#include "passes/model_failure.h"

namespace quern::passes {

struct RowBuilder::Heads {
  int64_t query = 1, key = 1;
  int64_t size = 1, value_size = 1;
  double scale = 0;  // 0: 1 / sqrt(size)
  double softcap = 0;
  Value* sinks = nullptr;
};

namespace {

// [batch, sequence, heads * size], or [batch, heads, sequence, size].
View heads_view(const View& like, int64_t heads, int64_t size, bool packed) {
  const std::vector<ViewAtom> atoms = like.atoms();
  ViewAxis batch, sequence;
  for (const ViewAtom& atom : atoms) {
    if (atom.axis == Rows::kBatch) batch.push_back(atom);
    if (atom.axis == Rows::kSequence) sequence.push_back(atom);
  }
  const ViewAtom head{Rows::kFeatures, size, heads}, element{Rows::kFeatures, 1, size};
  if (packed) return View::of_axes({batch, sequence, {head, element}}, {0, 0, 0});
  return View::of_axes({batch, {head}, sequence, {element}}, {0, 0, 0});
}

// Heads and head size of an operand: from its own axes, or from the number of heads that the operator states.
std::pair<int64_t, int64_t> divide(const Value* operand, int64_t stated_heads) {
  if (!operand->has_shape()) return {0, 0};
  const SymShape& shape = operand->shape();
  if (shape.size() == 4 && shape[1].is_constant() && shape[3].is_constant())
    return {shape[1].constant(), shape[3].constant()};
  if (shape.size() != 3 || !shape[2].is_constant() || stated_heads <= 0 ||
      shape[2].constant() % stated_heads != 0)
    return {0, 0};
  return {stated_heads, shape[2].constant() / stated_heads};
}

// Half precision rounds the factor that stands for it.
bool same_scale(double scale, int64_t head_size, DType dtype) {
  const double usual = 1 / std::sqrt(static_cast<double>(head_size));
  const double tolerance = dtype == DType::F16 ? 1e-3 : dtype == DType::BF16 ? 8e-3 : 1e-6;
  return std::abs(scale - usual) <= tolerance * usual;
}

}  // namespace

// The operand's rows [tokens, heads * size], head by head.
Value* RowBuilder::as_heads(const Rows& rows, int64_t heads, int64_t head_size, bool packed,
                            const char* what) {
  const Rows result = natural(rows);
  if (result.last_only || result.view != heads_view(result.view, heads, head_size, packed)) {
    throw NotRowWise{quern::concat("the ", what, " are laid out as ", to_string(result.view), ", not by ",
                                   heads, " heads of ", head_size)};
  }
  return result.rows;
}

Value* RowBuilder::emit_rotary(Value* rows, const RotaryKind& kind, const Node* origin) {
  Value*& frequencies = frequencies_[kind.inv_freq];
  const auto constant = [&](const std::vector<float>& numbers, const char* name) {
    return rewriter_.add_constant(Tensor::from<float>({static_cast<int64_t>(numbers.size())}, numbers), name);
  };
  if (frequencies == nullptr) frequencies = constant(kind.inv_freq, "rotary.inv_freq");
  std::vector<Value*> inputs = {rows, positions_, frequencies};
  Attributes attributes = {{"head_size", kind.head_size}};
  if (kind.interleaved) attributes["interleaved"] = int64_t{1};
  if (kind.scale != 1) attributes["scale"] = static_cast<float>(kind.scale);
  if (!kind.long_inv_freq.empty()) {
    Value*& longer = frequencies_[kind.long_inv_freq];
    if (longer == nullptr) longer = constant(kind.long_inv_freq, "rotary.long_inv_freq");
    inputs.push_back(longer);
    attributes["original_context"] = kind.original_context;
    attributes["long_scale"] = static_cast<float>(kind.long_scale);
  }
  return emit("Rotary", inputs, attributes, std::string(kQuernDomain), origin);
}

// An operand of an attention with the rotary embedding that was applied to it, if any was.
Value* RowBuilder::rotated(const Value* operand, int64_t heads, int64_t head_size, bool packed) {
  // Keys: the new ones alone are rotated.
  const Node* joined = inputs_.past_concat(operand);
  Value* target = joined ? joined->input(1) : const_cast<Value*>(operand);
  const auto direct = state_.find(target);
  if (direct != state_.end() && direct->second.ok())
    return as_heads(rows_of(operand), heads, head_size, packed, joined ? "keys" : "queries or keys");
  const LinearRegion region = find_region(target, control_, order_);
  if (!region.reason.empty()) throw NotRowWise{region.reason};
  if (!region.positional)
    return as_heads(rows_of(operand), heads, head_size, packed, "queries or keys");  // throws its reason
  const Rows input = natural(rows_of(region.input));
  if (input.cached || input.last_only) throw NotRowWise{"past keys are rotated anew"};
  if (feature_count(input.rows) != heads * head_size) throw NotRowWise{"a part of a projection is rotated"};
  const RotaryKind kind = rotaries_.read(
      region, target, {.heads = heads, .head_size = head_size, .input = input.view, .packed = packed});
  if (!kind.reason.empty()) throw NotRowWise{kind.reason};
  if (kind.identity) return input.rows;
  note_context(kind.position_limit);
  Value* rows = emit_rotary(input.rows, kind, region.nodes.back());
  // What attention and cache see of it.
  Rows result{.rows = rows, .view = heads_view(input.view, heads, head_size, packed)};
  set(target, result);
  return rows;
}

// RotaryEmbedding of both domains, where somebody needs its rows by themselves: attention looks through it.
void RowBuilder::rotary_operator(const Node& node) {
  throw NotRowWise{describe(node) + " rotates something other than queries and keys"};
}

Value* RowBuilder::emit_attention(const Node& origin, const Heads& heads, Value* q, Value* k, Value* v,
                                  const MaskKind& mask) {
  if (!mask.reason.empty()) throw NotRowWise{describe(origin) + ": " + mask.reason};
  if (!mask.causal) throw NotRowWise{describe(origin) + " sees later positions: this is no decoder"};
  Attributes attributes = {
      {"layer", layers_++}, {"heads", heads.query}, {"kv_heads", heads.key}, {"head_size", heads.size}};
  if (heads.value_size != heads.size) attributes["value_head_size"] = heads.value_size;
  if (heads.scale != 0 && !same_scale(heads.scale, heads.size, origin.input(0)->dtype()))
    attributes["scale"] = static_cast<float>(heads.scale);
  if (heads.softcap != 0) attributes["softcap"] = static_cast<float>(heads.softcap);
  if (mask.window > 0) attributes["window"] = mask.window;
  std::vector<Value*> inputs = {q, k, v};
  if (heads.sinks) inputs.push_back(as_f32(heads.sinks));
  if (!mask.slopes.empty()) {
    if (!heads.sinks) inputs.push_back(nullptr);
    inputs.push_back(rewriter_.add_constant(Tensor::from<float>({heads.query}, mask.slopes), "alibi.slopes"));
  }
  return emit("CachedAttention", inputs, attributes, std::string(kQuernDomain), &origin);
}

// ai.onnx Attention: the past comes in by a Concat in front, or by the operator's own inputs.
void RowBuilder::attention(const Node& node) {
  const auto [query_heads, size] = divide(node.input(0), node.int_attribute("q_num_heads", 0));
  const auto [key_heads, key_size] = divide(node.input(1), node.int_attribute("kv_num_heads", 0));
  const auto [value_heads, value_size] = divide(node.input(2), node.int_attribute("kv_num_heads", 0));
  if (query_heads == 0 || key_heads == 0 || key_heads != value_heads || size != key_size ||
      query_heads % key_heads != 0) {
    throw NotRowWise{describe(node) + " does not divide into heads"};
  }
  if (node.input(6) != nullptr)
    throw NotRowWise{describe(node) + " attends to a cache that is kept outside the graph"};
  const bool packed = node.input(0)->shape().size() == 3;
  Heads heads{.query = query_heads, .key = key_heads, .size = size, .value_size = value_size};
  heads.scale = node.float_attribute("scale", 0);
  heads.softcap = node.float_attribute("softcap", 0);
  heads.sinks = node.input(7);
  Value* q = rotated(node.input(0), query_heads, size, packed);
  Value* k = rotated(node.input(1), key_heads, size, packed);
  Value* v = as_heads(rows_of(node.input(2)), key_heads, value_size, packed, "values");
  const bool with_past = !inputs_.symbols.past.empty();
  const bool key_cached = node.input(4) != nullptr || inputs_.past_concat(node.input(1)) != nullptr;
  if (with_past != key_cached || (node.input(5) != nullptr) != (node.input(4) != nullptr) ||
      (with_past && node.input(4) == nullptr && !rows_of(node.input(2)).cached)) {
    throw NotRowWise{describe(node) + " attends to other keys and values than the past and the new ones"};
  }
  const MaskKind mask = masks_.read(node.input(3), node.int_attribute("is_causal", 0) != 0, query_heads);
  note_context(masks_.length_limit());
  Rows result{.rows = emit_attention(node, heads, q, k, v, mask)};
  result.view = heads_view(View(SymShape{inputs_.ids->shape()[0], inputs_.ids->shape()[1], 1}), query_heads,
                           value_size, packed);
  set(node.output(), std::move(result));
}

namespace {

// The single number of a tensor that the model computes as a length.
int64_t length_in(const Tensor& tensor) {
  if (!is_integer(tensor.dtype()) || tensor.size() != 1) {
    throw_error(ErrorCode::InvalidModel, "a length of type ", quern::to_string(tensor.dtype()), " and shape ",
                quern::to_string(tensor.shape()));
  }
  return tensor.int_at(0);
}

}  // namespace

// Whether the operator's own lengths say that all tokens count and none of them is padding.
void RowBuilder::check_lengths(const Node& node, const Value* last_index, const Value* total) {
  const bool has_past = !inputs_.symbols.past.empty();
  for (const auto& [sequence, past] : {std::pair<int64_t, int64_t>{1, 0}, {5, 0}, {1, 8}}) {
    const Probe probe{.batch = 1, .sequence = sequence, .past = has_past ? past : 0};
    const int64_t expected = probe.past + sequence;
    try {
      const bool fits = length_in(prober_.evaluate(last_index, probe)) == expected - 1 &&
                        (total == nullptr || length_in(prober_.evaluate(total, probe)) == expected);
      if (!fits) throw NotRowWise{describe(node) + " does not attend to all tokens"};
    } catch (const Error& error) {
      rethrow_unless_of_model(error);
      throw NotRowWise{describe(node) + ": its lengths cannot be evaluated: " + error.message()};
    }
  }
}

void RowBuilder::group_query_attention(const Node& node) {
  const int64_t query_heads = node.int_attribute("num_heads", 0);
  const int64_t key_heads = node.int_attribute("kv_num_heads", 0);
  const auto width = last_dim(node.input(0));
  const bool packed_projection = node.input(1) == nullptr;
  const int64_t parts = packed_projection ? query_heads + 2 * key_heads : query_heads;
  if (query_heads <= 0 || key_heads <= 0 || query_heads % key_heads != 0 || !width || *width % parts != 0) {
    throw NotRowWise{describe(node) + " does not divide into heads"};
  }
  const int64_t size = *width / parts;
  const bool plain = node.string_attribute("k_quant_type", "NONE") == "NONE" &&
                     node.int_attribute("causal", 1) == 1 && node.input(12) == nullptr &&
                     node.int_attribute("qk_output", 0) == 0;
  if (!plain)
    throw NotRowWise{describe(node) + " uses a quantized cache, no causal mask, or gives out its scores"};
  if ((node.input(3) != nullptr) != !inputs_.symbols.past.empty())
    throw NotRowWise{describe(node) + " has no past of its own"};
  if (node.input(5)) check_lengths(node, node.input(5), node.input(6));
  Value *q = nullptr, *k = nullptr, *v = nullptr;
  if (packed_projection) {
    const Rows all = joined_last(rows_of(node.input(0)), "the inputs of an attention");
    const auto part = [&](int64_t first, int64_t heads) {
      std::vector<int64_t> order(static_cast<size_t>(heads * size));
      for (size_t i = 0; i < order.size(); ++i) order[i] = first * size + static_cast<int64_t>(i);
      return take_features(all.rows, order);
    };
    q = part(0, query_heads);
    k = part(query_heads, key_heads);
    v = part(query_heads + key_heads, key_heads);
  } else {
    q = rotated(node.input(0), query_heads, size, true);
    k = rotated(node.input(1), key_heads, size, true);
    v = as_heads(rows_of(node.input(2)), key_heads, size, true, "values");
  }
  for (const auto& [weight, rows, heads] :
       {std::tuple(node.input(14), &q, query_heads), std::tuple(node.input(15), &k, key_heads)}) {
    if (weight == nullptr) continue;
    Value* parted = emit("Reshape", {*rows, ints({0, heads, size})});
    Value* normed = emit("RMSNormalization", {parted, as_f32(weight)},
                         {{"axis", int64_t{-1}},
                          {"epsilon", node.float_attribute("qk_norm_epsilon", 1e-6F)},
                          {"stash_type", int64_t{1}}});
    *rows = emit("Reshape", {normed, ints({0, heads * size})});
  }
  if (node.int_attribute("do_rotary", 0) != 0) {
    const RotaryKind kind = rotaries_.read_caches(node.input(7), node.input(8),
                                                  node.int_attribute("rotary_interleaved", 0) != 0, size);
    if (!kind.reason.empty()) throw NotRowWise{kind.reason};
    note_context(kind.position_limit);
    q = emit_rotary(q, kind, &node);
    k = emit_rotary(k, kind, &node);
  }
  Heads heads{.query = query_heads, .key = key_heads, .size = size, .value_size = size};
  heads.scale = node.float_attribute("scale", 0);
  heads.softcap = node.float_attribute("softcap", 0);
  heads.sinks = node.input(11);
  if (heads.sinks == nullptr && node.int_attribute("smooth_softmax", 0) == 1) {
    heads.sinks = rewriter_.add_constant(Tensor::zeros(DType::F32, {query_heads}), "attention.sinks");
  }
  MaskKind mask{.causal = true};
  if (node.input(10)) mask = masks_.read(node.input(10), true, query_heads);
  mask.window = std::max<int64_t>(0, node.int_attribute("local_window_size", -1));
  Rows result{.rows = emit_attention(node, heads, q, k, v, mask)};
  result.view = heads_view(View(SymShape{inputs_.ids->shape()[0], inputs_.ids->shape()[1], 1}), query_heads,
                           size, true);
  set(node.output(), std::move(result));
}

// Projections may lack their biases, which the operator adds.
void RowBuilder::multi_head_attention(const Node& node) {
  const int64_t heads_count = node.int_attribute("num_heads", 0);
  const auto [query_heads, size] = divide(node.input(0), heads_count);
  if (query_heads == 0 || node.input(1) == nullptr || node.input(1)->shape().size() != 3) {
    throw NotRowWise{describe(node) + " takes packed or crossing queries, keys and values"};
  }
  const auto [value_heads, value_size] = divide(node.input(2), heads_count);
  if (value_heads != query_heads || node.input(8) || node.input(9))
    throw NotRowWise{describe(node) + " is not of the usual form"};
  const bool causal = node.int_attribute("unidirectional", 0) != 0;
  if (node.input(4) && !is_mask_of_ones(node.input(4)))
    throw NotRowWise{describe(node) + " hides more than padding"};
  Value* rows[3];
  const int64_t sizes[3] = {size, size, value_size};
  int64_t first = 0;
  for (size_t i = 0; i < 3; ++i) {
    rows[i] = node.input(3)
                  ? as_heads(rows_of(node.input(i)), query_heads, sizes[i], true, "queries, keys or values")
                  : rotated(node.input(i), query_heads, sizes[i], true);
    const int64_t width = query_heads * sizes[i];
    if (node.input(3)) {
      Value* bias =
          emit("Slice", {node.input(3), ints({first}), ints({first + width}), ints({0}), ints({1})});
      rows[i] = emit("Add", {rows[i], as_f32(bias)});
    }
    first += width;
  }
  if ((node.input(6) != nullptr) != !inputs_.symbols.past.empty())
    throw NotRowWise{describe(node) + " has no past of its own"};
  Heads heads{.query = query_heads, .key = query_heads, .size = size, .value_size = value_size};
  heads.scale = node.float_attribute("scale", 0);
  const MaskKind mask = masks_.read(node.input(5), causal, query_heads);
  note_context(masks_.length_limit());
  Rows result{.rows = emit_attention(node, heads, rows[0], rows[1], rows[2], mask)};
  result.view = heads_view(View(SymShape{inputs_.ids->shape()[0], inputs_.ids->shape()[1], 1}), query_heads,
                           value_size, true);
  set(node.output(), std::move(result));
}

// Whether a padding mask hides nothing where nothing is padded.
bool RowBuilder::is_mask_of_ones(const Value* mask) {
  try {
    const Tensor ones = prober_.evaluate(
        mask, Probe{.batch = 1, .sequence = 4, .past = inputs_.symbols.past.empty() ? 0 : 3});
    if (!is_integer(ones.dtype()) && !is_floating(ones.dtype()) && ones.dtype() != DType::Bool) return false;
    if (ones.rank() == 1)
      return ones.size() == 1 && is_integer(ones.dtype()) &&
             ones.int_at(0) == (inputs_.symbols.past.empty() ? 4 : 7);  // a length
    for (int64_t i = 0; i < ones.size(); ++i) {
      if (ones.at(i) == 0) return false;
    }
    return true;
  } catch (const Error& error) {
    rethrow_unless_of_model(error);
    return false;
  }
}

}  // namespace quern::passes
