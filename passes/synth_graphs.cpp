#include "passes/synth_graphs.h"

#include <cmath>
#include <tuple>

#include "ir/decoder_mark.h"
#include "ir/rewriter.h"
#include "ir/schema.h"
#include "ir/verifier.h"
#include "passes/weights/placeholders.h"

namespace quern::passes {
namespace {

constexpr const char* kCosines = "rotary.cos_cache";
constexpr const char* kSines = "rotary.sin_cache";

std::vector<float> inverse_frequencies(const DecoderShape& shape) {
  std::vector<float> result;
  for (int64_t i = 0; i < shape.head_size / 2; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(shape.head_size);
    result.push_back(static_cast<float>(std::pow(static_cast<double>(shape.rope_base), -exponent)));
  }
  return result;
}

// What the two graphs have in common: values by the names that Hugging Face gives weights.
class DecoderBuilder {
 public:
  DecoderBuilder(const DecoderShape& shape, const std::string& name)
      : shape_(shape), graph_(std::make_unique<Graph>(name)), r_(*graph_) {}

 protected:
  Value* matrix(const std::string& name, int64_t rows, int64_t cols) {
    return r_.add_constant(placeholder(DType::F32, {rows, cols}), name);
  }
  // The weight of a norm.
  Value* ones(const std::string& name) {
    Tensor tensor = Tensor::zeros(DType::F32, {shape_.width});
    for (float& value : tensor.mutable_data<float>()) value = 1.0F;
    return r_.add_constant(std::move(tensor), name);
  }
  Value* add(std::string op, std::vector<Value*> inputs, Attributes attributes = {},
             std::string_view domain = "") {
    return r_
        .add_node({.op = std::move(op),
                   .domain = std::string(domain),
                   .inputs = std::move(inputs),
                   .attributes = std::move(attributes)})
        ->output();
  }
  Value* norm(Value* x, Value* weight) {
    return add("RMSNormalization", {x, weight}, {{"axis", int64_t{-1}}, {"epsilon", shape_.epsilon}});
  }
  std::unique_ptr<Graph> finish(Value* logits) {
    r_.add_output(logits, "logits");
    // None of ai.onnx: no source demands one.
    for (const auto& domain : {kMicrosoftDomain, kQuernDomain}) {
      r_.set_opset(std::string(domain), newest_opset(domain));
    }
    r_.commit();
    verify(*graph_);
    return std::move(graph_);
  }
  int64_t query_width() const { return shape_.heads * shape_.head_size; }
  int64_t kv_width() const { return shape_.kv_heads * shape_.head_size; }

  const DecoderShape& shape_;
  std::unique_ptr<Graph> graph_;
  Rewriter r_;
};

class CanonicalBuilder : public DecoderBuilder {
 public:
  explicit CanonicalBuilder(const DecoderShape& shape) : DecoderBuilder(shape, "decoder") {}

  std::unique_ptr<Graph> build() {
    const SymShape tokens = {Dim::symbol("tokens")};
    Value* ids = r_.add_input("input_ids", {DType::I64, tokens});
    positions_ = r_.add_input("positions", {DType::I64, tokens});
    r_.set_metadata(kDecoderMark, "1");
    r_.set_metadata("context_length", std::to_string(shape_.context));
    const std::vector<float> frequencies = inverse_frequencies(shape_);
    frequencies_ = r_.add_constant(
        Tensor::from<float>({shape_.head_size / 2}, std::span<const float>(frequencies)), "rotary.inv_freq");
    Value* table = matrix("model.embed_tokens.weight", shape_.vocabulary, shape_.width);
    Value* x = add("Embedding", {table, ids}, {}, kQuernDomain);
    Value* h = norm(x, ones("model.layers.0.input_layernorm.weight"));
    for (int64_t i = 0; i < shape_.layers; ++i) {
      const std::string layer = concat("model.layers.", i, ".");
      const bool last = i + 1 == shape_.layers;
      Value* a = attention(h, layer, i);
      // Behind the last attention only the rows are computed whose logits were asked for.
      if (last) {
        a = add("SelectRows", {a}, {}, kQuernDomain);
        x = add("SelectRows", {x}, {}, kQuernDomain);
      }
      a = linear(a, layer + "self_attn.o_proj.weight", shape_.width, query_width());
      std::tie(h, x) = skip_norm(x, a, ones(layer + "post_attention_layernorm.weight"));
      Value* m = mlp(h, layer);
      const std::string next =
          last ? "model.norm.weight" : concat("model.layers.", i + 1, ".input_layernorm.weight");
      std::tie(h, x) = skip_norm(x, m, ones(next));
    }
    if (shape_.tied) return finish(add("Linear", {h, table}, {}, kQuernDomain));
    return finish(linear(h, "lm_head.weight", shape_.vocabulary, shape_.width));
  }

 private:
  Value* linear(Value* x, const std::string& weight, int64_t n, int64_t k) {
    return add("Linear", {x, matrix(weight, n, k)}, {}, kQuernDomain);
  }

  Value* attention(Value* h, const std::string& layer, int64_t index) {
    const auto projected = [&](const char* which, int64_t width) {
      return linear(h, concat(layer, "self_attn.", which, "_proj.weight"), width, shape_.width);
    };
    const auto rotated = [&](Value* x) {
      return add("Rotary", {x, positions_, frequencies_}, {{"head_size", shape_.head_size}}, kQuernDomain);
    };
    Value* q = rotated(projected("q", query_width()));
    Value* k = rotated(projected("k", kv_width()));
    Value* v = projected("v", kv_width());
    return add("CachedAttention", {q, k, v},
               {{"layer", index},
                {"heads", shape_.heads},
                {"kv_heads", shape_.kv_heads},
                {"head_size", shape_.head_size}},
               kQuernDomain);
  }

  // The norm and the sum.
  std::pair<Value*, Value*> skip_norm(Value* x, Value* addend, Value* weight) {
    const Node* node =
        r_.add_node({.op = "SkipSimplifiedLayerNormalization",
                     .domain = std::string(kMicrosoftDomain),
                     .inputs = {x, addend, weight},
                     .attributes = {{"epsilon", shape_.epsilon}},
                     .outputs = {OutputSpec{}, OutputSpec::omitted(), OutputSpec::omitted(), OutputSpec{}}});
    return {node->output(0), node->output(3)};
  }

  Value* mlp(Value* h, const std::string& layer) {
    Value* gate = linear(h, layer + "mlp.gate_proj.weight", shape_.mlp_width, shape_.width);
    Value* up = linear(h, layer + "mlp.up_proj.weight", shape_.mlp_width, shape_.width);
    Value* product = add("Mul", {add("Swish", {gate}), up});
    return linear(product, layer + "mlp.down_proj.weight", shape_.width, shape_.mlp_width);
  }

  Value* positions_ = nullptr;
  Value* frequencies_ = nullptr;
};

class ExportedBuilder : public DecoderBuilder {
 public:
  explicit ExportedBuilder(const DecoderShape& shape) : DecoderBuilder(shape, "main_graph") {}

  std::unique_ptr<Graph> build() {
    Value* ids =
        r_.add_input("input_ids", {DType::I64, SymShape{Dim::symbol("batch"), Dim::symbol("sequence")}});
    positions_ = positions_of(ids);
    add_rotary_tables();
    Value* x = add("Gather", {matrix("model.embed_tokens.weight", shape_.vocabulary, shape_.width), ids});
    for (int64_t i = 0; i < shape_.layers; ++i) {
      const std::string layer = concat("model.layers.", i, ".");
      x = add("Add", {x, attention(norm(x, ones(layer + "input_layernorm.weight")), layer)});
      x = add("Add", {x, mlp(norm(x, ones(layer + "post_attention_layernorm.weight")), layer)});
    }
    return finish(
        product(norm(x, ones("model.norm.weight")), "lm_head.weight", shape_.width, shape_.vocabulary));
  }

 private:
  Value* integer(int64_t value) { return r_.add_constant(Tensor::scalar(value)); }
  Value* integers(std::initializer_list<int64_t> values) {
    return r_.add_constant(Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, values));
  }

  // 0, 1, ... for each row of the batch.
  Value* positions_of(Value* ids) {
    Value* shape = add("Shape", {ids});
    Value* length = add("Gather", {shape, integer(1)});
    Value* range = add("Range", {integer(0), length, integer(1)});
    return add("Expand", {add("Unsqueeze", {range, integers({0})}), shape});
  }

  void add_rotary_tables() {
    const std::vector<float> frequencies = inverse_frequencies(shape_);
    const auto half = static_cast<int64_t>(frequencies.size());
    Tensor cosines = Tensor::zeros(DType::F32, {shape_.context, half});
    Tensor sines = cosines;
    for (int64_t i = 0; i < cosines.size(); ++i) {
      const double angle =
          static_cast<double>(i / half) * static_cast<double>(frequencies[static_cast<size_t>(i % half)]);
      cosines.set(i, std::cos(angle));
      sines.set(i, std::sin(angle));
    }
    cosines_ = r_.add_constant(std::move(cosines), kCosines);
    sines_ = r_.add_constant(std::move(sines), kSines);
  }

  Value* product(Value* x, const std::string& weight, int64_t k, int64_t n) {
    return add("MatMul", {x, matrix(weight, k, n)});
  }

  Value* attention(Value* h, const std::string& layer) {
    const auto projected = [&](const char* which, int64_t width) {
      return product(h, concat(layer, "self_attn.", which, "_proj.weight"), shape_.width, width);
    };
    const auto rotated = [&](Value* x, int64_t heads) {
      return add("RotaryEmbedding", {x, cosines_, sines_, positions_}, {{"num_heads", heads}});
    };
    Value* q = rotated(projected("q", query_width()), shape_.heads);
    Value* k = rotated(projected("k", kv_width()), shape_.kv_heads);
    Value* v = projected("v", kv_width());
    Value* a =
        add("Attention", {q, k, v},
            {{"is_causal", int64_t{1}}, {"q_num_heads", shape_.heads}, {"kv_num_heads", shape_.kv_heads}});
    return product(a, layer + "self_attn.o_proj.weight", query_width(), shape_.width);
  }

  Value* mlp(Value* h, const std::string& layer) {
    Value* gate = product(h, layer + "mlp.gate_proj.weight", shape_.width, shape_.mlp_width);
    Value* up = product(h, layer + "mlp.up_proj.weight", shape_.width, shape_.mlp_width);
    Value* activated = add("Mul", {gate, add("Sigmoid", {gate})});
    return product(add("Mul", {activated, up}), layer + "mlp.down_proj.weight", shape_.mlp_width,
                   shape_.width);
  }

  Value* positions_ = nullptr;
  Value* cosines_ = nullptr;
  Value* sines_ = nullptr;
};

}  // namespace

std::unique_ptr<Graph> canonical_decoder(const DecoderShape& shape) {
  return CanonicalBuilder(shape).build();
}

std::unique_ptr<Graph> exported_decoder(const DecoderShape& shape) {
  return ExportedBuilder(shape).build();
}

bool is_rotary_table(const Value& value) {
  return value.name() == kCosines || value.name() == kSines;
}

}  // namespace quern::passes
