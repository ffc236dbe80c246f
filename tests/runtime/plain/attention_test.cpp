// The fused operators of encoders against the reference.
#include <limits>

#include "ir/packed_tensor.h"
#include "ir/quantize.h"
#include "ir/schema.h"
#include "tests/runtime/plain/like_reference.h"

namespace quern::runtime {
namespace {

// Zeros and ones.
Tensor random_mask(DType dtype, const Shape& shape, uint32_t seed) {
  std::mt19937 random(seed);
  Tensor tensor = Tensor::zeros(dtype, shape);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.set_int(i, random() % 3 != 0 ? 1 : 0);
  return tensor;
}

Tensor floats(const Shape& shape, uint32_t seed) {
  return random_tensor(DType::F32, shape, seed);
}

TEST(PlainAttention, OfOnnx) {
  const std::vector<Attributes> variants = {
      {},
      {{"is_causal", int64_t{1}}},
      {{"scale", 0.3F}, {"softcap", 2.0F}},
      {{"is_causal", int64_t{1}}, {"left_window_size", int64_t{3}}},
      {{"left_window_size", int64_t{2}}, {"right_window_size", int64_t{1}}}};
  for (const Attributes& attributes : variants) {
    for (const int64_t kv_heads : {4, 2, 1}) {
      Case c{"Attention", {{2, 4, 9, 8}, {2, kv_heads, 11, 8}, {2, kv_heads, 11, 5}}, attributes};
      expect_like_reference(c, 16);
      c.inputs = {{2, 9, 32}, {2, 11, kv_heads * 8}, {2, 11, kv_heads * 5}};
      c.attributes["q_num_heads"] = int64_t{4};
      c.attributes["kv_num_heads"] = kv_heads;
      expect_like_reference(c, 16);
    }
  }
}

// Several blocks of queries, and more than one thread's worth.
TEST(PlainAttention, OfLongSequences) {
  expect_like_reference({"Attention", {{1, 2, 700, 16}, {1, 2, 700, 16}, {1, 2, 700, 16}}}, 700);
  expect_like_reference({"Attention",
                         {{1, 2, 700, 16}, {1, 2, 700, 16}, {1, 2, 700, 16}},
                         {{"is_causal", int64_t{1}}, {"left_window_size", int64_t{50}}}},
                        700);
}

TEST(PlainAttention, OfOnnxWithMasks) {
  const std::vector<Tensor> qkv = {floats({2, 4, 6, 8}, 1), floats({2, 2, 7, 8}, 2), floats({2, 2, 7, 8}, 3)};
  const Case c{"Attention", {{2, 4, 6, 8}, {2, 2, 7, 8}, {2, 2, 7, 8}}};
  for (const Shape& shape :
       {Shape{6, 7}, Shape{2, 1, 1, 7}, Shape{2, 4, 6, 7}, Shape{4, 1, 7}, Shape{6, 4}}) {
    for (const DType dtype : {DType::Bool, DType::F32}) {
      std::vector<Tensor> inputs = qkv;
      inputs.push_back(dtype == DType::Bool ? random_mask(dtype, shape, 4) : floats(shape, 4));
      expect_like_reference(c, inputs, 16);
    }
  }
  // A row that sees nothing gives zeros.
  std::vector<Tensor> inputs = qkv;
  inputs.push_back(Tensor::zeros(DType::Bool, {6, 7}));
  expect_like_reference(c, inputs, 16);
  inputs.back() = Tensor::zeros(DType::F32, {6, 7});
  for (int64_t i = 0; i < 7; ++i) inputs.back().set(i, -std::numeric_limits<double>::infinity());
  expect_like_reference(c, inputs, 16);
}

TEST(PlainAttention, OfOnnxWithPastAndLengths) {
  for (const bool flat : {false, true}) {
    Case c{"Attention"};
    c.outputs = 3;
    c.attributes["is_causal"] = int64_t{1};
    c.attributes["q_num_heads"] = int64_t{4};
    c.attributes["kv_num_heads"] = int64_t{2};
    std::vector<Tensor> inputs = {floats(flat ? Shape{2, 3, 32} : Shape{2, 4, 3, 8}, 1),
                                  floats(flat ? Shape{2, 3, 16} : Shape{2, 2, 3, 8}, 2),
                                  floats(flat ? Shape{2, 3, 16} : Shape{2, 2, 3, 8}, 3)};
    expect_like_reference(c, inputs, 16);
    inputs.insert(inputs.end(), {Tensor(), floats({2, 2, 5, 8}, 4), floats({2, 2, 5, 8}, 5)});
    expect_like_reference(c, inputs, 16);
    c.outputs = 1;
    inputs.resize(3);
    inputs.insert(inputs.end(), {Tensor(), Tensor(), Tensor(), Tensor::from<int64_t>({2}, {3, 2})});
    expect_like_reference(c, inputs, 16);
  }
}

TEST(PlainAttention, MultiHead) {
  const Shape padding_shapes[] = {{2, 7}, {2}, {4}, {2, 6, 7}};
  for (const bool biased : {false, true}) {
    for (const int64_t causal : {0, 1}) {
      Case c{"MultiHeadAttention"};
      c.domain = kMicrosoftDomain;
      c.attributes["num_heads"] = int64_t{4};
      c.attributes["unidirectional"] = causal;
      const int64_t queries = causal != 0 ? 7 : 6;
      std::vector<Tensor> inputs = {floats({2, queries, 32}, 1), floats({2, 7, 32}, 2), floats({2, 7, 20}, 3),
                                    biased ? floats({84}, 4) : Tensor()};
      expect_like_reference(c, inputs, 16);
      for (const Shape& shape : padding_shapes) {
        if (shape.size() == 3 && causal != 0) continue;
        std::vector<Tensor> with = inputs;
        with.push_back(random_mask(DType::I32, shape, 5));
        expect_like_reference(c, with, 16);
        with.push_back(floats({1, 4, queries, 7}, 6));
        expect_like_reference(c, with, 16);
      }
    }
  }
}

TEST(PlainAttention, MultiHeadWithPast) {
  Case c{"MultiHeadAttention"};
  c.domain = kMicrosoftDomain;
  c.outputs = 3;
  c.attributes["num_heads"] = int64_t{4};
  std::vector<Tensor> inputs = {floats({2, 3, 32}, 1), floats({2, 3, 32}, 2), floats({2, 3, 32}, 3)};
  expect_like_reference(c, inputs, 16);
  inputs.insert(inputs.end(),
                {Tensor(), Tensor(), Tensor(), floats({2, 4, 5, 8}, 4), floats({2, 4, 5, 8}, 5)});
  expect_like_reference(c, inputs, 16);
  c.attributes["unidirectional"] = int64_t{1};
  expect_like_reference(c, inputs, 16);
}

TEST(PlainAttention, Packed) {
  for (const int64_t causal : {0, 1}) {
    Case c{"Attention"};
    c.domain = kMicrosoftDomain;
    c.attributes["num_heads"] = int64_t{4};
    c.attributes["unidirectional"] = causal;
    std::vector<Tensor> inputs = {floats({2, 6, 32}, 1), floats({32, 96}, 2), floats({96}, 3)};
    expect_like_reference(c, inputs, 2000);
    for (const Shape& shape : {Shape{2, 6}, Shape{2}, Shape{2, 6, 6}}) {
      std::vector<Tensor> with = inputs;
      with.push_back(random_mask(DType::I32, shape, 4));
      expect_like_reference(c, with, 2000);
      with.insert(with.end(), {Tensor(), floats({2, 1, 6, 6}, 6)});
      expect_like_reference(c, with, 2000);
    }
    c.attributes["qkv_hidden_sizes"] = Ints{32, 32, 20};
    inputs = {floats({2, 6, 32}, 1), floats({32, 84}, 2), floats({84}, 3)};
    expect_like_reference(c, inputs, 2000);
  }
}

TEST(PlainAttention, LeavesTheRareToTheReference) {
  // Rejected by the kernel itself, which then calls the reference.
  Case c{"MultiHeadAttention", {{2, 6, 4, 3, 8}}};
  c.domain = kMicrosoftDomain;
  c.implementation = "reference";
  c.attributes["num_heads"] = int64_t{4};
  expect_like_reference(c, 16);
  Case observed{"Attention", {{1, 2, 3, 8}, {1, 2, 3, 8}, {1, 2, 3, 8}}};
  observed.implementation = "reference";
  observed.outputs = 4;
  expect_like_reference(observed, 16);
}

TEST(PlainFused, SkipNorms) {
  for (const int outputs : {1, 4}) {
    Case c{"SkipLayerNormalization", {{2, 3, 37}, {2, 3, 37}, {37}, {37}, {37}}};
    c.domain = kMicrosoftDomain;
    c.outputs = outputs;
    expect_like_reference(c, 37);
    c.inputs[1] = {1, 3, 37};
    expect_like_reference(c, 37);
    c.inputs[1] = {3, 37};
    c.inputs[3] = {};
    expect_like_reference(c, 37);
    c.inputs.resize(3);
    c.attributes["epsilon"] = 0.1F;
    expect_like_reference(c, 37);
  }
  Case c{"SkipSimplifiedLayerNormalization", {{2, 3, 37}, {2, 3, 37}, {37}, {37}}};
  c.domain = kMicrosoftDomain;
  expect_like_reference(c, 37);
}

TEST(PlainFused, EmbedLayerNorm) {
  Case c{"EmbedLayerNormalization"};
  c.domain = kMicrosoftDomain;
  c.outputs = 2;
  const auto ids = [](int64_t most) {
    Tensor tensor = Tensor::zeros(DType::I32, {2, 5});
    for (int64_t i = 0; i < 10; ++i) tensor.set_int(i, (7 * i + 3) % most);
    return tensor;
  };
  std::vector<Tensor> inputs = {ids(11),  Tensor(),        floats({11, 37}, 1), floats({6, 37}, 2),
                                Tensor(), floats({37}, 4), floats({37}, 5)};
  expect_like_reference(c, inputs, 37);
  inputs[1] = ids(2);
  inputs[4] = floats({2, 37}, 3);
  inputs.push_back(random_mask(DType::I32, {2, 5}, 6));
  c.outputs = 3;
  expect_like_reference(c, inputs, 37);
}

TEST(PlainFused, Activations) {
  for (const std::string op : {"BiasGelu", "FastGelu", "QuickGelu"}) {
    Case c{op, {{3, 5, 37}, {37}}};
    c.domain = kMicrosoftDomain;
    if (op != "QuickGelu") expect_like_reference(c);
    c.inputs = {{300, 5, 37}};
    if (op != "BiasGelu") expect_like_reference(c);
  }
}

TEST(PlainFused, LinearAndEmbedding) {
  Case c{"Linear", {{2, 3, 37}, {19, 37}, {19}}};
  c.domain = kQuernDomain;
  expect_like_reference(c, 37);
  c.inputs.resize(2);
  expect_like_reference(c, 37);
  c.inputs = {{100, 300}, {200, 300}, {200}};
  expect_like_reference(c, 300);
  Case embedding{"Embedding"};
  embedding.domain = kQuernDomain;
  expect_like_reference(embedding, {floats({9, 37}, 1), Tensor::from<int64_t>({2, 2}, {3, 0, 8, 3})}, 1);
}

// Weights as artifacts have them. Integer ones take inputs of 16 bits, so that the tolerance is that of
// those.
TEST(PlainFused, LinearWithPackedWeights) {
  const Tensor x = floats({2, 9, 96}, 1), bias = floats({40}, 3);
  const Tensor dense = floats({40, 96}, 2);
  const std::vector<PackedTensor> weights = {
      pack(dense), pack(dense.cast(DType::F16)), pack(dense.cast(DType::BF16)),
      pack(
          quantize(dense, {.scheme = {.code = DType::I8, .granularity = QuantScheme::Granularity::Channel}})),
      pack(quantize(dense, {.scheme = {.code = DType::I4,
                                       .granularity = QuantScheme::Granularity::Group,
                                       .axis = 1,
                                       .group_size = 32}}))};
  for (const PackedTensor& weight : weights) {
    Graph graph;
    Rewriter rewriter(graph);
    Value* input = rewriter.add_input("x", {DType::F32, SymShape{2, 9, 96}});
    Node* node = rewriter.add_node(
        {.op = "Linear",
         .domain = std::string(kQuernDomain),
         .inputs = {input, rewriter.add_constant(weight, "w"), rewriter.add_constant(bias, "b")}});
    rewriter.add_output(node->output(), "y");
    rewriter.commit();
    std::string ran;
    RunOptions options;
    options.on_kernel = [&](const Node&, std::string_view name) { ran = std::string(name); };
    const Tensor found = Interpreter(graph).run({{"x", x}}, options).at("y").dense();
    EXPECT_EQ(ran, "cpu");
    options.implementation = "reference";
    const Tensor expected = Interpreter(graph).run({{"x", x}}, options).at("y").dense();
    ASSERT_EQ(found.shape(), (Shape{2, 9, 40}));
    for (int64_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found.at(i), expected.at(i), 5e-3);
  }
}

}  // namespace
}  // namespace quern::runtime
