// Linear with 8-bit activations: the reference operator, fake-quantized, against the integer kernels.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

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

std::vector<float> by_reference(const Constant& weight, const Tensor& x, const std::string& activations) {
  Graph graph;
  Rewriter rewriter(graph);
  Value* input = rewriter.add_input("x", {DType::F32, SymShape{Dim(kRows), Dim(kInputs)}});
  Attributes attributes;
  if (!activations.empty()) attributes["activations"] = activations;
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

std::vector<float> by_kernel(const PackedTensor& weight, const Tensor& x) {
  cpu::ThreadTeam team(1);
  cpu::LinearScratch scratch(1);
  const cpu::ActivationFormat format = cpu::activation_format(weight.spec(), cpu::ActivationMode::A8);
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

TEST(QuantizedActivations, TheSimulationAgreesWithTheIntegerKernels) {
  const Tensor weight = random_tensor({kOutputs, kInputs}, 1);
  Tensor x = random_tensor({kRows, kInputs}, 2);
  for (int64_t k = 0; k < kInputs; ++k) x.set(3 * kInputs + k, 0);  // a row of zeros is no division by zero
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
    const std::vector<float> simulated = by_reference(codes, x, "int8");
    EXPECT_EQ(by_reference(packed, x, "int8"), simulated);
    const std::vector<float> exact = by_reference(codes, x, "");
    const std::vector<float> computed = by_kernel(packed, x);
    double noise = 0;
    for (size_t i = 0; i < computed.size(); ++i) {
      // A tie may be rounded the other way: one step of one input, 3/127, times a weight of at most 4.
      EXPECT_NEAR(computed[i], simulated[i], 0.1) << to_string(options.scheme);
      noise += std::pow(double{simulated[i]} - double{exact[i]}, 2);
    }
    double difference = 0;
    for (size_t i = 0; i < computed.size(); ++i)
      difference += std::pow(double{computed[i]} - double{simulated[i]}, 2);
    EXPECT_LT(difference, 0.01 * noise) << "the simulation is not what is computed";
    EXPECT_GT(noise, 0) << "activations are not rounded";
  }
}

TEST(QuantizedActivations, FloatWeightsAndUnknownModes) {
  const Tensor weight = random_tensor({kOutputs, kInputs}, 1);
  const Tensor x = random_tensor({kRows, kInputs}, 2);
  EXPECT_EQ(by_reference(weight, x, "int8"), by_reference(weight, x, "")) << "float weights take floats";
  EXPECT_THROW(by_reference(weight, x, "int2"), Error);
}

}  // namespace
}  // namespace quern::test
