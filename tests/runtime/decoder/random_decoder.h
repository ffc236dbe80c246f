// Canonical decoders with random weights, small, in every variation that a test asks for.
#pragma once

#include <cmath>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/rewriter.h"
#include "ir/schema.h"

namespace quern::test {

struct DecoderShape {
  int64_t vocabulary = 97;
  int64_t layers = 2;
  int64_t width = 48;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t head_size = 12;
  int64_t ffn = 80;
  bool layer_norm = false;  // else RMS norm
  bool gated = true;        // else two products with Gelu
  bool bias = false;
  bool tied = true;               // one tensor is table and head
  bool head_norm = false;         // RMS norm of each head of q and k
  int64_t learned_positions = 0;  // rows of their table; 0: rotary
  bool interleaved = false;
  int64_t rotary_size = 0;  // 0: all of a head
  bool fused_qkv = false;
  bool parallel = false;  // attention and MLP read one norm, and are added together
  float softcap = 0;
  int64_t window = 0;
  bool sinks = false;
  bool alibi = false;
  bool select_rows = true;
  int64_t original_context = 0;  // with long frequencies, if not 0
  // Of weights: F32, F16, BF16, or I8 (per channel), U8 (groups of 32, zero points), I4 (groups of 16).
  DType weights = DType::F32;
};

class DecoderBuilder {
 public:
  explicit DecoderBuilder(DecoderShape shape, unsigned seed = 1)
      : shape_(std::move(shape)),
        random_(seed),
        graph_(std::make_unique<Graph>("decoder")),
        rewriter_(*graph_) {}

  std::unique_ptr<Graph> build() {
    const SymShape tokens = {Dim::symbol("tokens")};
    ids_ = rewriter_.add_input("input_ids", {DType::I64, tokens});
    positions_ = rewriter_.add_input("positions", {DType::I64, tokens});
    table_ = weight("embed_tokens", shape_.vocabulary, shape_.width, 0.5f);
    Value* x = quern("Embedding", {table_, ids_}, {}, "embedded");
    if (shape_.learned_positions > 0) {
      Value* positions =
          rewriter_.add_constant(floats({shape_.learned_positions, shape_.width}, 0.2f), "embed_positions");
      x = onnx("Add", {x, quern("Embedding", {positions, positions_}, {})});
    }
    if (shape_.alibi) {
      Tensor slopes = Tensor::zeros(DType::F32, {shape_.heads});
      for (int64_t h = 0; h < shape_.heads; ++h) slopes.set(h, std::ldexp(1.0, static_cast<int>(-h - 1)));
      slopes_ = rewriter_.add_constant(slopes, "slopes");
    }
    Value* h = norm(x);
    for (int64_t layer = 0; layer < shape_.layers; ++layer) {
      const bool last = layer + 1 == shape_.layers;
      if (shape_.parallel) {
        x = onnx("Add", {onnx("Add", {x, attention(h, layer)}), mlp(h)}, {},
                 "residual." + std::to_string(layer));
        if (last) x = select(x);
        h = norm(x);
        continue;
      }
      auto [normed, sum] = skip_norm(x, attention(h, layer));
      Value* m = mlp(normed);
      if (last) {
        sum = select(sum);
        m = select(m);
      }
      std::tie(h, x) = skip_norm(sum, m);
    }
    Value* head = shape_.tied ? table_ : weight("lm_head", shape_.vocabulary, shape_.width, 0.3f);
    rewriter_.add_output(quern("Linear", {h, head}, {}, "logits"), "logits");
    rewriter_.commit();
    return std::move(graph_);
  }

 private:
  Tensor floats(Shape shape, float spread, float mean = 0.0f) {
    std::normal_distribution<float> normal(mean, spread);
    Tensor tensor = Tensor::zeros(DType::F32, std::move(shape));
    for (float& v : tensor.mutable_data<float>()) v = normal(random_);
    return tensor;
  }

  QuantizedTensor codes(int64_t n, int64_t k, float spread) {
    QuantizedTensor q;
    q.scheme.code = shape_.weights;
    const bool grouped = shape_.weights != DType::I8;
    const int64_t group = shape_.weights == DType::I4 ? 16 : 32;
    q.scheme.granularity = grouped ? QuantScheme::Granularity::Group : QuantScheme::Granularity::Channel;
    q.scheme.axis = grouped ? 1 : 0;
    q.scheme.group_size = grouped ? group : 0;
    q.scheme.symmetric = shape_.weights != DType::U8;
    q.codes = Tensor::zeros(shape_.weights, {n, k});
    const int bits = bit_width(shape_.weights);
    const bool is_signed = is_signed_integer(shape_.weights);
    std::uniform_int_distribution<int> code(is_signed ? -(1 << (bits - 1)) : 0,
                                            is_signed ? (1 << (bits - 1)) - 1 : (1 << bits) - 1);
    for (int64_t i = 0; i < n * k; ++i) q.codes.set_int(i, code(random_));
    const Shape scales = grouped ? Shape{n, (k + group - 1) / group} : Shape{n};
    const float scale = spread * 3.5f / static_cast<float>(1 << bits);
    std::uniform_real_distribution<float> spread_of_scales(0.5f * scale, 1.5f * scale);
    q.scales = Tensor::zeros(shape_.weights == DType::I4 ? DType::F16 : DType::F32, scales);
    for (int64_t i = 0; i < q.scales.size(); ++i) q.scales.set(i, spread_of_scales(random_));
    if (!q.scheme.symmetric) {
      q.zero_points = Tensor::zeros(shape_.weights, scales);
      for (int64_t i = 0; i < q.zero_points.size(); ++i) q.zero_points.set_int(i, 100 + code(random_) % 56);
    }
    return q;
  }

  Value* weight(const std::string& name, int64_t n, int64_t k, float gain) {
    const float spread = gain / std::sqrt(static_cast<float>(k));
    if (is_integer(shape_.weights)) return rewriter_.add_constant(codes(n, k, spread), name);
    return rewriter_.add_constant(floats({n, k}, spread).cast(shape_.weights), name);
  }

  Value* node(std::string domain, const std::string& op, std::vector<Value*> inputs, Attributes attributes,
              std::string name) {
    NodeSpec spec;
    spec.op = op;
    spec.domain = std::move(domain);
    spec.name = op + "." + std::to_string(count_++);
    spec.inputs = std::move(inputs);
    spec.attributes = std::move(attributes);
    spec.outputs = {OutputSpec{.name = name.empty() ? spec.name : name}};
    return rewriter_.add_node(std::move(spec))->output();
  }
  Value* onnx(const std::string& op, std::vector<Value*> inputs, Attributes attributes = {},
              std::string name = {}) {
    return node("", op, std::move(inputs), std::move(attributes), std::move(name));
  }
  Value* quern(const std::string& op, std::vector<Value*> inputs, Attributes attributes,
               std::string name = {}) {
    return node(std::string(kQuernDomain), op, std::move(inputs), std::move(attributes), std::move(name));
  }

  Value* linear(Value* x, int64_t n, int64_t k, const std::string& name, float gain = 1.0f) {
    std::vector<Value*> inputs = {x, weight(name + "." + std::to_string(count_), n, k, gain)};
    if (shape_.bias) inputs.push_back(rewriter_.add_constant(floats({n}, 0.1f), name + ".bias"));
    return quern("Linear", inputs, {});
  }

  Value* norm(Value* x) {
    std::vector<Value*> inputs = {x,
                                  rewriter_.add_constant(floats({shape_.width}, 0.1f, 1.0f), "norm.weight")};
    if (shape_.layer_norm)
      inputs.push_back(rewriter_.add_constant(floats({shape_.width}, 0.1f), "norm.bias"));
    return onnx(shape_.layer_norm ? "LayerNormalization" : "RMSNormalization", inputs, {{"epsilon", 1e-5f}});
  }

  std::pair<Value*, Value*> skip_norm(Value* x, Value* skip) {
    NodeSpec spec;
    spec.op = shape_.layer_norm ? "SkipLayerNormalization" : "SkipSimplifiedLayerNormalization";
    spec.domain = std::string(kMicrosoftDomain);
    spec.name = spec.op + "." + std::to_string(count_++);
    spec.inputs = {x, skip, rewriter_.add_constant(floats({shape_.width}, 0.1f, 1.0f), "norm.weight")};
    if (shape_.layer_norm)
      spec.inputs.push_back(rewriter_.add_constant(floats({shape_.width}, 0.1f), "norm.bias"));
    spec.attributes = {{"epsilon", 1e-5f}};
    const ValueType type = {DType::F32, SymShape{Dim::symbol("rows"), Dim(shape_.width)}};
    spec.outputs = {OutputSpec{.name = spec.name, .type = type}, OutputSpec::omitted(), OutputSpec::omitted(),
                    OutputSpec{.name = spec.name + ".sum", .type = type}};
    const Node* added = rewriter_.add_node(std::move(spec));
    return {added->output(0), added->output(3)};
  }

  Value* heads_norm(Value* x) {
    Value* apart = rewriter_.add_constant(Tensor::from<int64_t>({3}, {0, -1, shape_.head_size}), "apart");
    Value* together = rewriter_.add_constant(Tensor::from<int64_t>({2}, {0, -1}), "together");
    Value* weight = rewriter_.add_constant(floats({shape_.head_size}, 0.1f, 1.0f), "head_norm.weight");
    Value* heads = onnx("Reshape", {x, apart});
    return onnx("Reshape", {onnx("RMSNormalization", {heads, weight}, {{"epsilon", 1e-6f}}), together});
  }

  Value* rotary(Value* x) {
    const int64_t rotated = shape_.rotary_size > 0 ? shape_.rotary_size : shape_.head_size;
    if (frequencies_ == nullptr) {
      Tensor base = Tensor::zeros(DType::F32, {rotated / 2}), extended = base;
      for (int64_t i = 0; i < rotated / 2; ++i) {
        base.set(i, std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(rotated)));
        extended.set(i, base.at(i) / (1 + 0.2 * static_cast<double>(i)));
      }
      frequencies_ = rewriter_.add_constant(base, "inv_freq");
      long_frequencies_ = rewriter_.add_constant(extended, "long_inv_freq");
    }
    Attributes attributes = {{"head_size", shape_.head_size}, {"interleaved", int64_t{shape_.interleaved}}};
    std::vector<Value*> inputs = {x, positions_, frequencies_};
    if (shape_.original_context > 0) {
      inputs.push_back(long_frequencies_);
      attributes["original_context"] = shape_.original_context;
      attributes["long_scale"] = 1.1f;
    }
    return quern("Rotary", inputs, attributes);
  }

  Value* attention(Value* h, int64_t layer) {
    const int64_t q_width = shape_.heads * shape_.head_size, kv_width = shape_.kv_heads * shape_.head_size;
    Value *q, *k, *v;
    if (shape_.fused_qkv) {
      Value* qkv = linear(h, q_width + 2 * kv_width, shape_.width, "qkv");
      NodeSpec spec;
      spec.op = "Split";
      spec.name = "Split." + std::to_string(count_++);
      spec.inputs = {
          qkv, rewriter_.add_constant(Tensor::from<int64_t>({3}, {q_width, kv_width, kv_width}), "sizes")};
      spec.attributes = {{"axis", int64_t{1}}};
      spec.outputs = {OutputSpec{}, OutputSpec{}, OutputSpec{}};
      const Node* split = rewriter_.add_node(std::move(spec));
      q = split->output(0);
      k = split->output(1);
      v = split->output(2);
    } else {
      q = linear(h, q_width, shape_.width, "q_proj", 2.0f);
      k = linear(h, kv_width, shape_.width, "k_proj", 2.0f);
      v = linear(h, kv_width, shape_.width, "v_proj");
    }
    if (shape_.head_norm) {
      q = heads_norm(q);
      k = heads_norm(k);
    }
    if (shape_.learned_positions == 0 && !shape_.alibi) {
      q = rotary(q);
      k = rotary(k);
    }
    Attributes attributes = {{"layer", layer},
                             {"heads", shape_.heads},
                             {"kv_heads", shape_.kv_heads},
                             {"head_size", shape_.head_size},
                             {"softcap", shape_.softcap},
                             {"window", layer % 2 == 0 ? shape_.window : int64_t{0}}};
    std::vector<Value*> inputs = {q, k, v};
    if (shape_.sinks || shape_.alibi) {
      inputs.push_back(shape_.sinks ? rewriter_.add_constant(floats({shape_.heads}, 1.0f), "sinks")
                                    : nullptr);
    }
    if (shape_.alibi) inputs.push_back(slopes_);
    Value* a = quern("CachedAttention", inputs, attributes, "attention." + std::to_string(layer));
    return linear(a, shape_.width, q_width, "o_proj");
  }

  Value* mlp(Value* h) {
    if (shape_.gated) {
      Value* up = linear(h, shape_.ffn, shape_.width, "up_proj");
      Value* gate = onnx("Swish", {linear(h, shape_.ffn, shape_.width, "gate_proj")});
      return linear(onnx("Mul", {gate, up}), shape_.width, shape_.ffn, "down_proj");
    }
    Value* hidden =
        onnx("Gelu", {linear(h, shape_.ffn, shape_.width, "fc1")}, {{"approximate", std::string("tanh")}});
    return linear(hidden, shape_.width, shape_.ffn, "fc2");
  }

  Value* select(Value* x) { return shape_.select_rows ? quern("SelectRows", {x}, {}) : x; }

  DecoderShape shape_;
  std::mt19937 random_;
  std::unique_ptr<Graph> graph_;
  Rewriter rewriter_;
  int count_ = 0;
  Value* ids_ = nullptr;
  Value* positions_ = nullptr;
  Value* table_ = nullptr;
  Value* slopes_ = nullptr;
  Value* frequencies_ = nullptr;
  Value* long_frequencies_ = nullptr;
};

inline std::unique_ptr<Graph> random_decoder(const DecoderShape& shape, unsigned seed = 1) {
  return DecoderBuilder(shape, seed).build();
}

struct NamedDecoder {
  std::string name;
  DecoderShape shape;
  DType cache = DType::F32;  // what sessions keep keys and values as
};

inline void PrintTo(const NamedDecoder& decoder, std::ostream* out) {
  *out << decoder.name;
}

// One of each kind.
inline std::vector<NamedDecoder> decoder_variations() {
  std::vector<NamedDecoder> all;
  const auto add = [&](const std::string& name) -> DecoderShape& {
    all.push_back({.name = name, .shape = {}});
    return all.back().shape;
  };
  add("llama");
  DecoderShape& gpt2 = add("gpt2");
  gpt2.layer_norm = gpt2.bias = gpt2.fused_qkv = true;
  gpt2.gated = false;
  gpt2.kv_heads = 4;
  gpt2.learned_positions = 300;
  DecoderShape& qwen = add("head_norm");
  qwen.head_norm = true;
  qwen.tied = false;
  DecoderShape& phi = add("parallel");
  phi.parallel = phi.layer_norm = phi.bias = true;
  phi.gated = false;
  phi.rotary_size = 8;
  DecoderShape& gemma = add("window_softcap");
  gemma.window = 20;
  gemma.softcap = 5.0f;
  gemma.head_size = 20;
  DecoderShape& sinks = add("sinks_interleaved");
  sinks.sinks = sinks.interleaved = true;
  DecoderShape& bloom = add("alibi");
  bloom.alibi = true;
  bloom.kv_heads = 1;
  add("without_select_rows").select_rows = false;
  add("long_frequencies").original_context = 40;
  for (const DType weights : {DType::F16, DType::BF16, DType::I8, DType::U8, DType::I4}) {
    add("weights_" + std::string(to_string(weights))).weights = weights;
  }
  return all;
}

inline std::vector<int64_t> random_tokens(int64_t count, int64_t vocabulary, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int64_t> id(0, vocabulary - 1);
  std::vector<int64_t> tokens(static_cast<size_t>(count));
  for (int64_t& token : tokens) token = id(random);
  return tokens;
}

}  // namespace quern::test
