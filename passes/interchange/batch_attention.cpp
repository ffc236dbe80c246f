#include "passes/interchange/batch_attention.h"

#include <cmath>
#include <limits>

namespace quern::passes {
namespace {

constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

// Each of the `kv_heads` heads of [batch, kv_heads, T, size] `times` times in a row.
Value* repeated(Emitter& emit, Value* x, int64_t kv_heads, int64_t times, int64_t size) {
  if (times == 1) return x;
  Value* shape = emit.add("Shape", {x});
  Value* batch = emit.slice(shape, 0, 0, 1);
  Value* length = emit.slice(shape, 0, 2, 3);
  const auto joined = [&](std::vector<Value*> parts) {
    return emit.add("Concat", std::move(parts), {{"axis", int64_t{0}}});
  };
  Value* stretched = emit.add(
      "Expand",
      {emit.unsqueeze(x, 2), joined({batch, emit.ints({kv_heads, times}), length, emit.ints({size})})});
  return emit.add("Reshape",
                  {stretched, joined({batch, emit.ints({kv_heads * times}), length, emit.ints({size})})});
}

// The softmax over scores and, per head, one more logit that gets none of the values.
Value* softmax_with_sinks(Emitter& emit, Value* scores, Value* sinks, int64_t heads) {
  Value* shape = emit.add("Concat", {emit.slice(emit.add("Shape", {scores}), 0, 0, 3), emit.ints({1})},
                          {{"axis", int64_t{0}}});
  Value* column = emit.add("Expand", {emit.reshape(sinks, {1, heads, 1, 1}), shape});
  Value* all = emit.add("Softmax", {emit.add("Concat", {scores, column}, {{"axis", int64_t{-1}}})},
                        {{"axis", int64_t{-1}}});
  return emit.slice(all, -1, 0, -1);
}

}  // namespace

AttentionForm AttentionForm::of(const Node& node) {
  AttentionForm form;
  form.heads = node.int_attribute("heads", 0);
  form.kv_heads = node.int_attribute("kv_heads", form.heads);
  form.head_size = node.int_attribute("head_size", 0);
  form.value_head_size = node.int_attribute("value_head_size", form.head_size);
  form.scale =
      node.float_attribute("scale", static_cast<float>(1 / std::sqrt(static_cast<double>(form.head_size))));
  form.softcap = node.float_attribute("softcap", 0);
  form.window = node.int_attribute("window", 0);
  return form;
}

Value* emit_heads(Emitter& emit, Value* x, int64_t heads, int64_t size) {
  return emit.transpose(emit.reshape(x, {0, 0, heads, size}), {0, 2, 1, 3});
}

Value* emit_joined_heads(Emitter& emit, Value* x, int64_t width) {
  return emit.reshape(emit.transpose(x, {0, 2, 1, 3}), {0, 0, width});
}

Value* emit_softmax_attention(Emitter& emit, const AttentionForm& form, Value* q, Value* k, Value* v,
                              Value* bias, Value* sinks) {
  const int64_t times = form.heads / form.kv_heads;
  Value* keys = emit.transpose(repeated(emit, k, form.kv_heads, times, form.head_size), {0, 1, 3, 2});
  Value* scores = emit.add("MatMul", {emit.add("Mul", {q, emit.scalar(form.scale, q->dtype())}), keys});
  if (form.softcap != 0) {
    Value* cap = emit.scalar(form.softcap, q->dtype());
    scores = emit.add("Mul", {emit.add("Tanh", {emit.add("Div", {scores, cap})}), cap});
  }
  if (bias) scores = emit.add("Add", {scores, bias});
  Value* probabilities = sinks ? softmax_with_sinks(emit, scores, sinks, form.heads)
                               : emit.add("Softmax", {scores}, {{"axis", int64_t{-1}}});
  return emit.add("MatMul", {probabilities, repeated(emit, v, form.kv_heads, times, form.value_head_size)});
}

// As onnxruntime-genai's model builder derives them from the mask.
Value* BatchAttention::total_length() {
  if (total_) return total_;
  Value* length = emit_.add("Gather", {emit_.add("Shape", {inputs_.attention_mask}), emit_.integer(1)},
                            {{"axis", int64_t{0}}});
  return total_ = emit_.cast(length, DType::I32);
}

Value* BatchAttention::distances(Value* past_key) {
  if (distances_) return distances_;
  const auto size_of = [&](Value* value, int64_t axis) {
    return emit_.add("Gather", {emit_.add("Shape", {value}), emit_.integer(axis)}, {{"axis", int64_t{0}}});
  };
  Value* past = size_of(past_key, 2);
  Value* total = emit_.add("Add", {past, size_of(inputs_.ids, 1)});
  Value* keys = emit_.add("Range", {emit_.integer(0), total, emit_.integer(1)});
  Value* queries = emit_.add("Range", {past, total, emit_.integer(1)});
  return distances_ = emit_.add("Sub", {emit_.unsqueeze(keys, 0), emit_.unsqueeze(queries, 1)});
}

Value* BatchAttention::alibi(Value* slopes, int64_t heads, Value* past_key) {
  return emit_.add("Mul",
                   {emit_.reshape(slopes, {1, heads, 1, 1}), emit_.cast(distances(past_key), DType::F32)});
}

Value* BatchAttention::mask_bias(int64_t window, Value* past_key) {
  Value*& bias = biases_[window];
  if (bias) return bias;
  Value* distance = distances(past_key);
  Value* seen = emit_.add("Not", {emit_.add("Greater", {distance, emit_.integer(0)})});
  if (window > 0) {
    seen = emit_.add("And", {seen, emit_.add("Greater", {distance, emit_.integer(-window)})});
  }
  Value* kept = emit_.cast(inputs_.attention_mask, DType::Bool);
  Value* both = emit_.add("And", {seen, emit_.add("Unsqueeze", {kept, emit_.ints({1, 2})})});
  return bias =
             emit_.add("Where", {both, emit_.scalar(0), emit_.scalar(std::numeric_limits<float>::lowest())});
}

BatchAttention::Result BatchAttention::fused_attention(const AttentionForm& form, std::vector<Value*> qkv,
                                                       Value* sinks, Value* slopes) {
  if (lengths_ == nullptr) {
    Value* ones =
        emit_.add("ReduceSum", {inputs_.attention_mask, emit_.ints({1})}, {{"keepdims", int64_t{0}}});
    lengths_ = emit_.cast(emit_.add("Sub", {ones, emit_.ints({1})}), DType::I32);
  }
  Attributes attributes = {{"num_heads", form.heads}, {"kv_num_heads", form.kv_heads}, {"scale", form.scale}};
  if (form.softcap != 0) attributes["softcap"] = form.softcap;
  if (form.window > 0) attributes["local_window_size"] = form.window;
  Value* past_key = qkv[3];
  qkv.insert(qkv.end(), {lengths_, total_length(), nullptr, nullptr, nullptr,
                         slopes ? alibi(slopes, form.heads, past_key) : nullptr, sinks});
  const Node* node = emit_.node("GroupQueryAttention", qkv, attributes, 3, std::string(kMicrosoftDomain));
  return {node->output(0), node->output(1), node->output(2)};
}

BatchAttention::Result BatchAttention::attention(const Node& node, Value* q, Value* k, Value* v, Value* sinks,
                                                 Value* slopes, Value* past_key, Value* past_value) {
  const AttentionForm form = AttentionForm::of(node);
  constexpr int64_t kHeadMultiple = 8;  // what ONNX Runtime's kernel takes
  if (fused_ && form.head_size == form.value_head_size && form.head_size % kHeadMultiple == 0) {
    return fused_attention(form, {q, k, v, past_key, past_value}, sinks, slopes);
  }
  Result result;
  const auto appended = [&](Value* past, Value* x, int64_t size) {
    return emit_.add("Concat", {past, emit_heads(emit_, x, form.kv_heads, size)}, {{"axis", int64_t{2}}});
  };
  result.present_key = appended(past_key, k, form.head_size);
  result.present_value = appended(past_value, v, form.value_head_size);
  Value* bias = mask_bias(form.window, past_key);
  if (slopes) bias = emit_.add("Add", {alibi(slopes, form.heads, past_key), bias});
  Value* heads = emit_softmax_attention(emit_, form, emit_heads(emit_, q, form.heads, form.head_size),
                                        result.present_key, result.present_value, bias, sinks);
  result.output = emit_joined_heads(emit_, heads, form.heads * form.value_head_size);
  return result;
}

namespace {

std::vector<float> frequencies_of(const Node& node, size_t input) {
  const Value* value = node.input(input);
  if (value == nullptr || value->tensor() == nullptr)
    throw_error(ErrorCode::Unsupported, describe(node), " has rotary frequencies that are not constant");
  return value->tensor()->to_floats();
}

Tensor vector_of(const std::vector<float>& values) {
  return Tensor::from<float>({static_cast<int64_t>(values.size())}, std::span<const float>(values));
}

// Each frequency for both features of its pair: halves [f, f], or interleaved [f0, f0, f1, f1, ...].
std::vector<float> doubled(const std::vector<float>& frequencies, bool interleaved) {
  std::vector<float> both;
  if (interleaved) {
    for (const float f : frequencies) both.insert(both.end(), {f, f});
  } else {
    both = frequencies;
    both.insert(both.end(), frequencies.begin(), frequencies.end());
  }
  return both;
}

}  // namespace

// Tables are for positions that are known to end, and must stay small beside the weights.
bool BatchAttention::has_tables(const Node& node) const {
  constexpr int64_t kMostElements = int64_t{1} << 22;
  const auto pairs = static_cast<int64_t>(frequencies_of(node, 2).size());
  return fused_ && node.input(3) == nullptr && context_length_ > 0 &&
         context_length_ * pairs <= kMostElements;
}

BatchAttention::CosSin BatchAttention::tables(const Node& node) {
  std::vector<float> key = frequencies_of(node, 2);
  const size_t pairs = key.size();
  const float scale = node.float_attribute("scale", 1);
  key.push_back(scale);
  CosSin& made = tables_[key];
  if (made.cos) return made;
  const Shape shape = {context_length_, static_cast<int64_t>(pairs)};
  Tensor cos = Tensor::zeros(DType::F32, shape), sin = Tensor::zeros(DType::F32, shape);
  const auto cosines = cos.mutable_data<float>(), sines = sin.mutable_data<float>();
  for (size_t i = 0; i < cosines.size(); ++i) {
    const double angle = static_cast<double>(i / pairs) * static_cast<double>(key[i % pairs]);
    cosines[i] = static_cast<float>(std::cos(angle) * static_cast<double>(scale));
    sines[i] = static_cast<float>(std::sin(angle) * static_cast<double>(scale));
  }
  made.cos = emit_.constant(std::move(cos), "rotary.cos_cache");
  made.sin = emit_.constant(std::move(sin), "rotary.sin_cache");
  return made;
}

BatchAttention::CosSin BatchAttention::angles(const Node& node, bool interleaved) {
  const std::vector<float> frequencies = doubled(frequencies_of(node, 2), interleaved);
  std::vector<float> key = frequencies;
  key.push_back(interleaved ? 1.0F : 0.0F);
  const float scale = node.float_attribute("scale", 1);
  key.push_back(scale);
  CosSin& made = angles_[key];
  if (made.cos) return made;
  Value* factors = emit_.constant(vector_of(frequencies), "rotary.inv_freq");
  Value* size = scale != 1 ? emit_.scalar(scale) : nullptr;
  if (node.input(3)) {
    // Longer sequences have frequencies of their own.
    Value* original =
        emit_.constant(Tensor::scalar(static_cast<int32_t>(node.int_attribute("original_context", 0))),
                       "rotary.original_context");
    Value* is_long = emit_.add("Greater", {total_length(), original});
    Value* others =
        emit_.constant(vector_of(doubled(frequencies_of(node, 3), interleaved)), "rotary.long_inv_freq");
    factors = emit_.add("Where", {is_long, others, factors});
    const float long_scale = node.float_attribute("long_scale", scale);
    if (long_scale != scale)
      size = emit_.add("Where", {is_long, emit_.scalar(long_scale), emit_.scalar(scale)});
    else
      size = scale != 1 ? emit_.scalar(scale) : nullptr;
  }
  Value* positions =
      emit_.cast(emit_.add("Unsqueeze", {inputs_.position_ids, emit_.ints({2, 3})}), DType::F32);
  Value* angle = emit_.add("Mul", {positions, factors});
  const auto sized = [&](Value* x) { return size ? emit_.add("Mul", {x, size}) : x; };
  made.cos = sized(emit_.add("Cos", {angle}));
  made.sin = sized(emit_.add("Sin", {angle}));
  return made;
}

Value* BatchAttention::rotary(const Node& node, Value* x) {
  const int64_t head_size = node.int_attribute("head_size", 0);
  const auto rotated = static_cast<int64_t>(2 * frequencies_of(node, 2).size());
  const bool interleaved = node.int_attribute("interleaved", 0) != 0;
  const int64_t width = node.input(0)->shape().back().constant();
  const int64_t heads = width / head_size;
  if (has_tables(node)) {
    const CosSin caches = tables(node);
    Attributes attributes = {{"interleaved", int64_t{interleaved}}, {"num_heads", heads}};
    if (rotated != head_size) attributes["rotary_embedding_dim"] = rotated;
    return emit_.add_microsoft("RotaryEmbedding", {x, inputs_.position_ids, caches.cos, caches.sin},
                               attributes);
  }
  const CosSin turn = angles(node, interleaved);
  Value* parted = emit_.reshape(x, {0, 0, heads, head_size});
  Value* part = rotated == head_size ? parted : emit_.slice(parted, -1, 0, rotated);
  Value* turned = nullptr;
  if (interleaved) {
    Value* even = emit_.slice(part, -1, 0, kEnd, 2);
    Value* odd = emit_.add("Neg", {emit_.slice(part, -1, 1, kEnd, 2)});
    Value* pairs =
        emit_.add("Concat", {emit_.unsqueeze(odd, 4), emit_.unsqueeze(even, 4)}, {{"axis", int64_t{-1}}});
    turned = emit_.reshape(pairs, {0, 0, heads, rotated});
  } else {
    Value* first = emit_.slice(part, -1, 0, rotated / 2);
    Value* second = emit_.add("Neg", {emit_.slice(part, -1, rotated / 2, kEnd)});
    turned = emit_.add("Concat", {second, first}, {{"axis", int64_t{-1}}});
  }
  Value* result =
      emit_.add("Add", {emit_.add("Mul", {part, turn.cos}), emit_.add("Mul", {turned, turn.sin})});
  if (rotated != head_size) {
    result = emit_.add("Concat", {result, emit_.slice(parted, -1, rotated, kEnd)}, {{"axis", int64_t{-1}}});
  }
  return emit_.reshape(result, {0, 0, width});
}

}  // namespace quern::passes
