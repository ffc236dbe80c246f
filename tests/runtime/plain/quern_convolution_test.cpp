// Convolutions of ai.quern: every kernel against the reference, which computes by the operators of ai.onnx.
#include <gtest/gtest.h>

#include "ir/activation_scheme.h"
#include "ir/packed_tensor.h"
#include "ir/quantize.h"
#include "ir/rewriter.h"
#include "ir/schema.h"
#include "runtime/cpu/isa.h"
#include "tests/runtime/plain/like_reference.h"

namespace quern::runtime {
namespace {

using Kind = ActivationScheme::Kind;

struct Layer {
  Shape x;
  Ints kernel;
  int64_t outputs = 0;
  int64_t groups = 1;
  Ints strides = {}, pads = {}, dilations = {};
  bool transposed = false;
  Ints output_padding = {};

  int64_t columns() const { return element_count(kernel) * x[1] / groups; }
  Attributes attributes() const {
    Attributes all = {{"kernel_shape", kernel}, {"group", groups}};
    if (!strides.empty()) all["strides"] = strides;
    if (!pads.empty()) all["pads"] = pads;
    if (!dilations.empty()) all["dilations"] = dilations;
    if (!output_padding.empty()) all["output_padding"] = output_padding;
    return all;
  }
};

const std::vector<Layer>& layers() {
  static const std::vector<Layer> all = {
      {.x = {2, 3, 9, 11}, .kernel = {3, 3}, .outputs = 5, .pads = {1, 1, 1, 1}},
      {.x = {1, 8, 7, 6}, .kernel = {3, 3}, .outputs = 20, .strides = {2, 2}, .pads = {1, 0, 0, 1}},
      {.x = {2, 4, 8, 8}, .kernel = {1, 1}, .outputs = 17},
      {.x = {1, 6, 12}, .kernel = {5}, .outputs = 4, .pads = {4, 0}, .dilations = {2}},
      {.x = {1, 2, 4, 5, 6}, .kernel = {2, 3, 2}, .outputs = 3, .strides = {1, 2, 1}},
      {.x = {2, 6, 7, 7}, .kernel = {3, 3}, .outputs = 6, .groups = 6, .pads = {1, 1, 1, 1}},
      {.x = {1, 8, 6, 6}, .kernel = {3, 3}, .outputs = 12, .groups = 2},
      {.x = {2, 5, 4, 3},
       .kernel = {3, 3},
       .outputs = 7,
       .strides = {2, 2},
       .pads = {1, 1, 1, 1},
       .transposed = true,
       .output_padding = {1, 1}},
      {.x = {1, 8, 6}, .kernel = {4}, .outputs = 3, .strides = {3}, .dilations = {2}, .transposed = true},
      {.x = {1, 4, 3, 3}, .kernel = {2, 2}, .outputs = 6, .groups = 2, .strides = {2, 2}, .transposed = true},
  };
  return all;
}

Tensor computed(const Layer& layer, const Tensor& x, const Constant& weight, const Tensor& bias,
                const ActivationScheme& scheme, const char* implementation) {
  Graph graph;
  Rewriter rewriter(graph);
  SymShape shape;
  for (const int64_t dim : x.shape()) shape.push_back(dim);
  Value* input = rewriter.add_input("x", {DType::F32, shape});
  Attributes attributes = layer.attributes();
  attributes.merge(to_attributes(scheme));
  const Node* node = rewriter.add_node(
      {.op = layer.transposed ? "ConvolutionTranspose" : "Convolution",
       .domain = std::string(kQuernDomain),
       .inputs = {input, rewriter.add_constant(weight, "w"), rewriter.add_constant(bias, "b")},
       .attributes = attributes});
  rewriter.add_output(node->output(), "y");
  rewriter.commit();
  std::string ran;
  RunOptions options;
  options.implementation = implementation;
  options.on_kernel = [&](const Node&, std::string_view name) { ran = std::string(name); };
  Tensor y = Interpreter(graph).run({{"x", x}}, options).at("y").dense();
  EXPECT_EQ(ran, *implementation == 0 ? "cpu" : implementation);
  EXPECT_EQ(node->output()->shape().size(), x.shape().size());
  for (size_t i = 0; i < x.shape().size(); ++i)
    EXPECT_EQ(node->output()->shape()[i], Dim(y.shape()[i])) << "what shape inference says of axis " << i;
  return y;
}

void expect_near(const Tensor& found, const Tensor& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(found.shape(), expected.shape()) << what;
  double largest = 1;
  for (int64_t i = 0; i < expected.size(); ++i) largest = std::max(largest, std::fabs(expected.at(i)));
  for (int64_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(found.at(i), expected.at(i), tolerance * largest) << what << ", element " << i;
}

std::string described(const Layer& layer) {
  return quern::to_string(layer.x) + " kernel " + quern::to_string(layer.kernel) +
         (layer.transposed ? " transposed" : "") + " groups " + std::to_string(layer.groups);
}

QuantizedTensor codes_of(const Tensor& weight, DType code, int64_t group) {
  QuantizeOptions options;
  options.scheme = {
      .code = code,
      .symmetric = is_signed_integer(code),
      .granularity = group > 0 ? QuantScheme::Granularity::Group : QuantScheme::Granularity::Channel,
      .axis = group > 0 ? 1 : 0,
      .group_size = group};
  return quantize(weight, options);
}

TEST(QuernConvolution, FloatsAreTheOperatorsOfOnnx) {
  for (const Layer& layer : layers()) {
    const Tensor x = random_tensor(DType::F32, layer.x, 1);
    const Tensor weight = random_tensor(DType::F32, {layer.outputs, layer.columns()}, 2);
    const Tensor bias = random_tensor(DType::F32, {layer.outputs}, 3);
    const Tensor expected = computed(layer, x, weight, bias, {}, "reference");
    expect_near(computed(layer, x, weight, bias, {}, ""), expected, 1e-5, described(layer));
    // Narrow ones are made wide once.
    const Tensor narrow = weight.cast(DType::F16);
    expect_near(computed(layer, x, narrow, bias, {}, ""), computed(layer, x, narrow, bias, {}, "reference"),
                1e-5, described(layer));
  }
}

TEST(QuernConvolution, CodesComputeWhatTheirNumbersSay) {
  const ActivationScheme schemes[] = {{},
                                      {.kind = Kind::Token},
                                      {.kind = Kind::TokenAsymmetric},
                                      {.kind = Kind::Static, .scale = 0.02F, .lowest = -127, .highest = 127},
                                      {.kind = Kind::Static, .scale = 0.012F, .lowest = 0, .highest = 255}};
  for (const cpu::Isa isa : cpu::supported_isas()) {
    const cpu::ForcedKernels forced(isa);
    for (const Layer& layer : layers()) {
      const Tensor x = random_tensor(DType::F32, layer.x, 1);
      const Tensor floats = random_tensor(DType::F32, {layer.outputs, layer.columns()}, 2);
      const Tensor bias = random_tensor(DType::F32, {layer.outputs}, 3);
      for (const auto& [code, group] :
           {std::pair(DType::I8, 0), std::pair(DType::U8, 0), std::pair(DType::I4, 16)}) {
        const QuantizedTensor codes = codes_of(floats, code, group);
        for (const ActivationScheme& scheme : schemes) {
          const std::string what = described(layer) + " " + std::string(to_string(code)) + " activations " +
                                   std::to_string(static_cast<int>(scheme.kind)) + " on " +
                                   std::string(cpu::to_string(isa));
          const Tensor expected = computed(layer, x, codes, bias, scheme, "reference");
          // 16-bit codes are not rounded in the reference.
          const double tolerance = scheme.kind == Kind::None ? 2e-4 : 1e-5;
          expect_near(computed(layer, x, pack(codes), bias, scheme, ""), expected, tolerance, what);
          expect_near(computed(layer, x, codes, bias, scheme, ""), expected, 1e-5, what);
        }
      }
    }
  }
}

TEST(QuernConvolution, ASampleIsRoundedByItself) {
  const Layer layer{.x = {2, 4, 5, 5}, .kernel = {3, 3}, .outputs = 6};
  Tensor both = random_tensor(DType::F32, layer.x, 1);
  for (int64_t i = both.size() / 2; i < both.size(); ++i) both.set(i, both.at(i) * 100);
  const Tensor first = Tensor::from<float>({1, 4, 5, 5}, both.data<float>().first(100));
  const PackedTensor weight = pack(codes_of(random_tensor(DType::F32, {6, 36}, 2), DType::I8, 0));
  const Tensor bias = random_tensor(DType::F32, {6}, 3);
  const ActivationScheme scheme{.kind = Kind::Token};
  const Tensor together = computed(layer, both, weight, bias, scheme, "");
  const Tensor alone = computed(layer, first, weight, bias, scheme, "");
  for (int64_t i = 0; i < alone.size(); ++i) ASSERT_EQ(together.at(i), alone.at(i)) << i;
}

TEST(QuernConvolution, WhatNoCodeStandsForShows) {
  const Layer layer{.x = {2, 4, 3, 3}, .kernel = {3, 3}, .outputs = 2};
  Tensor x = random_tensor(DType::F32, layer.x, 1);
  x.set(5, std::nan(""));
  const PackedTensor weight = pack(codes_of(random_tensor(DType::F32, {2, 36}, 2), DType::I8, 0));
  const Tensor bias = Tensor::zeros(DType::F32, {2});
  for (const ActivationScheme& scheme :
       {ActivationScheme{},
        ActivationScheme{.kind = Kind::Static, .scale = 1, .lowest = -127, .highest = 127}}) {
    const Tensor y = computed(layer, x, weight, bias, scheme, "");
    EXPECT_TRUE(std::isnan(y.at(0)) && std::isnan(y.at(1)));
    EXPECT_TRUE(std::isfinite(y.at(2)) && std::isfinite(y.at(3)));
  }
}

TEST(QuernConvolution, AnEmptySampleGivesTheBias) {
  const Layer layer{.x = {1, 4, 3, 3}, .kernel = {3, 3}, .outputs = 2};
  const PackedTensor weight = pack(codes_of(random_tensor(DType::F32, {2, 36}, 2), DType::I8, 0));
  const Tensor bias = random_tensor(DType::F32, {2}, 3);
  const Tensor y =
      computed(layer, Tensor::zeros(DType::F32, layer.x), weight, bias, {.kind = Kind::Token}, "");
  EXPECT_EQ(y.at(0), bias.at(0));
  EXPECT_EQ(y.at(1), bias.at(1));
}

}  // namespace
}  // namespace quern::runtime
