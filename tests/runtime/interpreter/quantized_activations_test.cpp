// Linear with 8-bit activations: the reference operator, fake-quantized, against the integer kernels.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "ir/activation_scheme.h"
#include "ir/quantize.h"
#include "ir/rewriter.h"
#include "ir/schema.h"
#include "runtime/cpu/linear.h"
#include "runtime/interpreter.h"
#include "tests/support/expect_error.h"

namespace quern::test {
namespace {

using Granularity = QuantScheme::Granularity;

constexpr int64_t kRows = 6;
constexpr int64_t kOutputs = 40;
constexpr int64_t kInputs = 96;

Tensor random_tensor(Shape shape, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Tensor tensor = Tensor::zeros(DType::F32, std::move(shape));
  for (float& value : tensor.mutable_data<float>()) value = normal(random);
  return tensor;
}

std::vector<float> by_reference(const Constant& weight, const Tensor& x, const Attributes& attributes) {
  Graph graph;
  Rewriter rewriter(graph);
  Value* input = rewriter.add_input("x", {DType::F32, SymShape{Dim(kRows), Dim(kInputs)}});
  rewriter.add_output(rewriter
                          .add_node({.op = "Linear",
                                     .domain = std::string(kQuernDomain),
                                     .inputs = {input, rewriter.add_constant(weight)},
                                     .attributes = attributes})
                          ->output(),
                      "y");
  rewriter.commit();
  runtime::RunOptions options;
  options.implementation = "reference";
  return runtime::Interpreter(graph).run({{"x", x}}, options).at("y").dense().to_floats();
}

std::vector<float> by_kernel(const PackedTensor& weight, const Tensor& x, const cpu::ActivationRange& range) {
  cpu::ThreadTeam team(1);
  cpu::LinearScratch scratch(1);
  const cpu::ActivationFormat format =
      cpu::activation_format(weight.spec(), cpu::ActivationMode::A8, cpu::active_isa(), range);
  Tensor memory = Tensor::zeros(DType::U8, {cpu::Activations::byte_size(format, kRows)});
  const cpu::Activations input = cpu::Activations::place(
      format, kRows, {memory.mutable_bytes(), static_cast<size_t>(memory.byte_size())});
  input.encode(x.data<float>().data(), kInputs, team);
  std::vector<float> y(static_cast<size_t>(kRows * kOutputs));
  const cpu::LinearOp op{
      .weight = &weight, .input = &input, .y = y.data(), .y_stride = kOutputs, .rows = kRows};
  cpu::linear({&op, 1}, team, scratch);
  return y;
}

struct Rounding {
  ActivationScheme scheme;
  cpu::ActivationRange range;
};

std::vector<Rounding> roundings() {
  using Kind = ActivationScheme::Kind;
  using Range = cpu::ActivationRange::Kind;
  std::vector<Rounding> all = {{{.kind = Kind::Group}, {}},
                               {{.kind = Kind::Token}, {.kind = Range::Row}},
                               {{.kind = Kind::TokenAsymmetric}, {.kind = Range::RowAsymmetric}}};
  for (const auto& [low, high] : {std::pair{-127, 127}, {-40, 215}, {-128, 127}, {0, 255}}) {
    const float scale = 2.5F / static_cast<float>(high);  // some are cut off
    all.push_back({{.kind = Kind::Static, .scale = scale, .lowest = low, .highest = high},
                   {.kind = Range::Fixed, .scale = scale, .lowest = low, .highest = high}});
  }
  return all;
}

TEST(QuantizedActivations, TheSimulationAgreesWithTheIntegerKernels) {
  const Tensor weight = random_tensor({kOutputs, kInputs}, 1);
  Tensor x = random_tensor({kRows, kInputs}, 2);
  for (int64_t k = 0; k < kInputs; ++k) {
    x.set(3 * kInputs + k, 0);                                       // no division by zero
    x.set(4 * kInputs + k, std::fabs(x.at(4 * kInputs + k)) + 0.5);  // one side alone
  }
  const std::vector<std::pair<DType, Granularity>> schemes = {{DType::I8, Granularity::Channel},
                                                              {DType::U8, Granularity::Group},
                                                              {DType::I4, Granularity::Group},
                                                              {DType::U4, Granularity::Group}};
  for (const auto& [code, granularity] : schemes) {
    QuantizeOptions options;
    options.scheme = {.code = code,
                      .symmetric = is_signed_integer(code),
                      .granularity = granularity,
                      .axis = granularity == Granularity::Group ? 1 : 0,
                      .group_size = granularity == Granularity::Group ? 32 : 0};
    const QuantizedTensor codes = quantize(weight, options);
    const PackedTensor packed = pack(codes);
    const std::vector<float> exact = by_reference(codes, x, {});
    for (const Rounding& rounding : roundings()) {
      const Attributes attributes = to_attributes(rounding.scheme);
      const std::vector<float> simulated = by_reference(codes, x, attributes);
      EXPECT_EQ(by_reference(packed, x, attributes), simulated);
      const std::vector<float> computed = by_kernel(packed, x, rounding.range);
      const std::string where =
          to_string(options.scheme) + concat(", rounding ", static_cast<int>(rounding.scheme.kind));
      double noise = 0, difference = 0;
      for (size_t i = 0; i < computed.size(); ++i) {
        // Per block, the kernels multiply by a reciprocal: a tie may be rounded the other way, one step of
        // one input, 3/127, times a weight of at most 4. Else all that differs is the order of sums.
        const double tolerance = rounding.scheme.kind == ActivationScheme::Kind::Group ? 0.1 : 2e-4;
        EXPECT_NEAR(computed[i], simulated[i], tolerance) << where;
        noise += std::pow(double{simulated[i]} - double{exact[i]}, 2);
        difference += std::pow(double{computed[i]} - double{simulated[i]}, 2);
      }
      EXPECT_LT(difference, 0.01 * noise) << "the simulation is not what is computed, " << where;
      EXPECT_GT(noise, 0) << "activations are not rounded";
    }
  }
}

TEST(QuantizedActivations, WhatIsNotFiniteShows) {
  const QuantizeOptions options{
      .scheme = {.code = DType::I8, .granularity = Granularity::Channel, .axis = 0}};
  const PackedTensor packed = pack(quantize(random_tensor({kOutputs, kInputs}, 1), options));
  for (const Rounding& rounding : roundings()) {
    Tensor x = random_tensor({kRows, kInputs}, 2);
    const std::vector<float> sound = by_kernel(packed, x, rounding.range);
    x.set(2 * kInputs + 5, NAN);
    const std::vector<float> y = by_kernel(packed, x, rounding.range);
    for (size_t i = 0; i < y.size(); ++i) {
      if (i / kOutputs == 2) {
        EXPECT_TRUE(std::isnan(y[i]));
      } else {
        EXPECT_EQ(y[i], sound[i]) << "another row";
      }
    }
  }
}

TEST(QuantizedActivations, BadAttributes) {
  const Tensor weight = random_tensor({kOutputs, kInputs}, 1), x = random_tensor({kRows, kInputs}, 2);
  const QuantizedTensor codes =
      quantize(weight, {.scheme = {.code = DType::I8, .granularity = Granularity::Channel, .axis = 0}});
  for (const float scale : {0.0F, -1.0F, INFINITY}) {
    const Attributes attributes = to_attributes(
        {.kind = ActivationScheme::Kind::Static, .scale = scale, .lowest = -127, .highest = 127});
    EXPECT_QUERN_ERROR(by_reference(codes, x, attributes), ErrorCode::InvalidModel, "positive scale");
  }
  EXPECT_QUERN_ERROR(
      by_reference(codes, x,
                   to_attributes({.kind = ActivationScheme::Kind::Static, .scale = 1, .lowest = -500})),
      ErrorCode::InvalidModel, "-500");
}

TEST(QuantizedActivations, FloatWeightsAndUnknownModes) {
  const Tensor weight = random_tensor({kOutputs, kInputs}, 1);
  const Tensor x = random_tensor({kRows, kInputs}, 2);
  EXPECT_EQ(by_reference(weight, x, {{"activations", std::string("int8")}}), by_reference(weight, x, {}))
      << "float weights take floats";
  EXPECT_THROW(by_reference(weight, x, {{"activations", std::string("int2")}}), Error);
}

}  // namespace
}  // namespace quern::test
