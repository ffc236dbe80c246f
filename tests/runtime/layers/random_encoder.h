// Small encoders that classify, with random weights, as canonicalization leaves them.
#pragma once

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/rewriter.h"
#include "ir/schema.h"

namespace quern::test {

struct EncoderShape {
  int64_t vocabulary = 61;
  int64_t layers = 4;
  int64_t width = 16;
  int64_t heads = 2;
  int64_t ffn = 24;
  int64_t classes = 5;
  enum class Norm {
    Post,      // sums and norms as one operator, as in BERT
    Pre,       // Add, LayerNormalization
    PreFused,  // the same with sums and norms as one operator
  } norm = Norm::Post;
  bool mean_pool = false;    // over the mask; else the first token
  bool expanded = false;     // masks expanded by the shape of what they are for, the attention's once for all
  bool spelled_out = false;  // Softmax between products in place of Attention
};

class EncoderBuilder {
 public:
  explicit EncoderBuilder(EncoderShape shape, unsigned seed = 1)
      : shape_(shape), random_(seed), graph_(std::make_unique<Graph>("encoder")), rewriter_(*graph_) {}

  std::unique_ptr<Graph> build() {
    const SymShape tokens = {Dim::symbol("batch"), Dim::symbol("tokens")};
    Value* ids = rewriter_.add_input("input_ids", {DType::I64, tokens});
    Value* mask = rewriter_.add_input("attention_mask", {DType::I64, tokens});
    mask_ = onnx("Cast", {mask}, {{"to", int64_t{1}}});
    Value* keys = onnx("Unsqueeze", {mask_, ints({1, 2})});
    bias_ = onnx("Mul", {onnx("Sub", {scalar(1), keys}), scalar(-10000)});
    Value* x = quern("Embedding", {weight(shape_.vocabulary, shape_.width, 4), ids}, "embedded");
    Value* h = nullptr;
    if (shape_.norm == EncoderShape::Norm::Post) {
      h = x = norm(x);
    } else {
      h = norm(x);
    }
    for (int64_t layer = 0; layer < shape_.layers; ++layer) {
      std::tie(x, h) = add(x, attention(h), "");
      std::tie(x, h) =
          add(x, linear(onnx("Gelu", {linear(h, shape_.ffn, shape_.width)}), shape_.width, shape_.ffn),
              "stream." + std::to_string(layer + 1));
    }
    Value* pooled = onnx("Tanh", {linear(pool(h), shape_.width, shape_.width)});
    rewriter_.add_output(linear(pooled, shape_.classes, shape_.width, 4), "logits");
    rewriter_.commit();
    return std::move(graph_);
  }

 private:
  Tensor floats(Shape shape, float spread, float mean = 0) {
    std::normal_distribution<float> normal(mean, spread);
    Tensor tensor = Tensor::zeros(DType::F32, std::move(shape));
    for (float& v : tensor.mutable_data<float>()) v = normal(random_);
    return tensor;
  }
  Value* weight(int64_t n, int64_t k, float gain = 1.5F) {
    return rewriter_.add_constant(floats({n, k}, gain / std::sqrt(static_cast<float>(k))),
                                  "weight." + std::to_string(count_++));
  }
  Value* scalar(float value) { return rewriter_.add_constant(Tensor::scalar<float>(value), "scalar"); }
  Value* ints(std::vector<int64_t> values) {
    const auto count = static_cast<int64_t>(values.size());
    return rewriter_.add_constant(Tensor::from<int64_t>({count}, std::span<const int64_t>(values)), "ints");
  }
  Value* node(std::string_view domain, const std::string& op, std::vector<Value*> inputs,
              Attributes attributes, std::string name) {
    NodeSpec spec;
    spec.op = op;
    spec.domain = std::string(domain);
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
  Value* quern(const std::string& op, std::vector<Value*> inputs, std::string name = {}) {
    return node(kQuernDomain, op, std::move(inputs), {}, std::move(name));
  }
  Value* linear(Value* x, int64_t n, int64_t k, float gain = 1.5F) {
    Value* w = weight(n, k, gain);
    return quern("Linear", {x, w, rewriter_.add_constant(floats({n}, 0.1F), w->name() + ".bias")});
  }
  Value* norm(Value* x, const std::string& name = {}) {
    return onnx("LayerNormalization",
                {x, rewriter_.add_constant(floats({shape_.width}, 0.1F, 1), "norm.weight"),
                 rewriter_.add_constant(floats({shape_.width}, 0.1F), "norm.bias")},
                {{"epsilon", 1e-5F}}, name);
  }

  // The stream and what the next part of a layer reads.
  std::pair<Value*, Value*> add(Value* x, Value* change, const std::string& name) {
    if (shape_.norm == EncoderShape::Norm::Pre) {
      Value* sum = onnx("Add", {x, change}, {}, name);
      return {sum, norm(sum)};
    }
    NodeSpec spec;
    spec.op = "SkipLayerNormalization";
    spec.domain = std::string(kMicrosoftDomain);
    spec.name = spec.op + "." + std::to_string(count_++);
    spec.inputs = {x, change, rewriter_.add_constant(floats({shape_.width}, 0.1F, 1), "norm.weight"),
                   rewriter_.add_constant(floats({shape_.width}, 0.1F), "norm.bias")};
    spec.attributes = {{"epsilon", 1e-5F}};
    const bool post = shape_.norm == EncoderShape::Norm::Post;
    const ValueType type = x->type();
    spec.outputs = {OutputSpec{.name = post ? name : "", .type = type}};
    if (!post) {
      spec.outputs.resize(3, OutputSpec::omitted());
      spec.outputs.push_back(OutputSpec{.name = name, .type = type});
    }
    const Node* added = rewriter_.add_node(std::move(spec));
    return {added->output(post ? 0 : 3), added->output(0)};
  }

  Value* split(Value* x) {
    Value* apart = onnx("Reshape", {x, ints({0, 0, shape_.heads, shape_.width / shape_.heads})});
    return onnx("Transpose", {apart}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
  }

  Value* attention(Value* h) {
    Value *q = linear(h, shape_.width, shape_.width), *k = linear(h, shape_.width, shape_.width),
          *v = linear(h, shape_.width, shape_.width);
    Value* mixed = nullptr;
    if (shape_.expanded && !expanded_) {
      // As exporters write masked_fill: [batch, heads, tokens, tokens], then shared by all layers.
      Value* scores = onnx(
          "MatMul", {split(q), onnx("Transpose", {split(k)}, {{"perm", std::vector<int64_t>{0, 1, 3, 2}}})});
      bias_ = onnx("Expand", {bias_, onnx("Shape", {scores})});
      expanded_ = true;
    }
    if (shape_.spelled_out) {
      Value* transposed = onnx("Transpose", {split(k)}, {{"perm", std::vector<int64_t>{0, 1, 3, 2}}});
      Value* weights = onnx("Softmax", {onnx("Add", {onnx("MatMul", {split(q), transposed}), bias_})},
                            {{"axis", int64_t{-1}}});
      Value* together = onnx("Transpose", {onnx("MatMul", {weights, split(v)})},
                             {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
      mixed = onnx("Reshape", {together, ints({0, 0, shape_.width})});
    } else {
      mixed = onnx("Attention", {q, k, v, bias_},
                   {{"q_num_heads", shape_.heads}, {"kv_num_heads", shape_.heads}});
    }
    return linear(mixed, shape_.width, shape_.width);
  }

  Value* pool(Value* h) {
    if (!shape_.mean_pool) {
      Value* first = rewriter_.add_constant(Tensor::scalar<int64_t>(0), "first");
      return onnx("Gather", {h, first}, {{"axis", int64_t{1}}});
    }
    Value* mask = onnx("Unsqueeze", {mask_, ints({2})});
    if (shape_.expanded) mask = onnx("Expand", {mask, onnx("Shape", {h})});
    Value* sum = onnx("ReduceSum", {onnx("Mul", {h, mask}), ints({1})}, {{"keepdims", int64_t{0}}});
    return onnx("Div", {sum, onnx("ReduceSum", {mask, ints({1})}, {{"keepdims", int64_t{0}}})});
  }

  EncoderShape shape_;
  std::mt19937 random_;
  std::unique_ptr<Graph> graph_;
  Rewriter rewriter_;
  Value* mask_ = nullptr;
  Value* bias_ = nullptr;
  bool expanded_ = false;
  int count_ = 0;
};

inline std::unique_ptr<Graph> random_encoder(EncoderShape shape = {}, unsigned seed = 1) {
  return EncoderBuilder(shape, seed).build();
}

}  // namespace quern::test
