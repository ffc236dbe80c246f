// Inputs that are rounded on the way, in the operators of other runtimes, against the formulas.
#include "passes/interchange/interchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "ir/quantize.h"
#include "ir/rewriter.h"
#include "ir/schema.h"
#include "runtime/interpreter.h"

namespace quern::passes {
namespace {

constexpr int64_t kRows = 3, kInputs = 32, kOutputs = 5;

Tensor wave(Shape shape, float scale, float shift = 0) {
  Tensor tensor = Tensor::zeros(DType::F32, std::move(shape));
  for (int64_t i = 0; i < tensor.size(); ++i)
    tensor.set(i, scale * std::sin(0.7 * static_cast<double>(i) + 0.3 * static_cast<double>(i % 5)) + shift);
  return tensor;
}

QuantizedTensor coded_weight() {
  QuantizeOptions options;
  options.scheme = {.code = DType::I8, .symmetric = true, .granularity = QuantScheme::Granularity::Channel};
  return quantize(wave({kOutputs, kInputs}, 0.4F), options);
}

std::unique_ptr<Graph> product(const Attributes& attributes) {
  auto graph = std::make_unique<Graph>("product");
  Rewriter rewriter(*graph);
  Value* x = rewriter.add_input("x", {DType::F32, SymShape{Dim::symbol("n"), Dim(kInputs)}});
  Value* weight = rewriter.add_constant(coded_weight(), "w");
  Node* node = rewriter.add_node(
      {.op = "Linear", .domain = std::string(kQuernDomain), .inputs = {x, weight}, .attributes = attributes});
  rewriter.add_output(node->output(), "y");
  rewriter.commit();
  return graph;
}

// What the other runtime computes, as quern's own kernels of those operators do it.
std::vector<float> exported(const Attributes& attributes, WeightStyle style, const Tensor& x,
                            const std::vector<std::string>& operators) {
  const std::unique_ptr<Graph> graph = to_interchange(*product(attributes), {.style = style});
  for (const std::string& op : operators) {
    const auto& nodes = graph->nodes();
    EXPECT_TRUE(std::any_of(nodes.begin(), nodes.end(), [&](const Node* node) { return node->op() == op; }))
        << op << " is not in " << to_text(*graph);
  }
  return runtime::Interpreter(*graph).run({{"x", x}}).at("y").dense().to_floats();
}

using Rounding = std::function<std::vector<double>(const std::vector<double>&)>;

std::vector<float> expected(const Tensor& x, const Rounding& round) {
  const Tensor weight = dequantize(coded_weight());
  std::vector<float> result;
  for (int64_t r = 0; r < kRows; ++r) {
    std::vector<double> row;
    for (int64_t k = 0; k < kInputs; ++k) row.push_back(x.at(r * kInputs + k));
    row = round(row);
    for (int64_t n = 0; n < kOutputs; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < kInputs; ++k) sum += row[static_cast<size_t>(k)] * weight.at(n * kInputs + k);
      result.push_back(static_cast<float>(sum));
    }
  }
  return result;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-4) << i;
}

std::vector<double> by_magnitude(const std::vector<double>& row) {
  double largest = 0;
  for (const double x : row) largest = std::max(largest, std::fabs(x));
  const double scale = largest / 127;
  std::vector<double> rounded;
  for (const double x : row) rounded.push_back(scale == 0 ? 0 : std::nearbyint(x / scale) * scale);
  return rounded;
}

std::vector<double> by_extremes(const std::vector<double>& row) {
  const double lowest = std::min(0.0, *std::min_element(row.begin(), row.end()));
  const double highest = std::max(0.0, *std::max_element(row.begin(), row.end()));
  const double scale = (highest - lowest) / 255, zero = std::nearbyint(-lowest / scale);
  std::vector<double> rounded;
  for (const double x : row) {
    const double code = std::clamp(std::nearbyint(x / scale) + zero, 0.0, 255.0);
    rounded.push_back((code - zero) * scale);
  }
  return rounded;
}

TEST(InterchangeActivations, HaveOneScaleATokenWhereTheArtifactHas) {
  Tensor x = wave({kRows, kInputs}, 1.3F, 0.4F);
  for (int64_t k = 0; k < kInputs; ++k) x.set(kInputs + k, 0);  // a token of zeros
  for (const char* kind : {"int8", "int8-token"}) {
    expect_near(exported({{"activations", std::string(kind)}}, WeightStyle::QOperator, x, {"MatMulInteger"}),
                expected(x, by_magnitude));
  }
}

TEST(InterchangeActivations, MayHaveAZeroPointEach) {
  const Tensor x = wave({kRows, kInputs}, 1.3F, 0.4F);
  expect_near(
      exported({{"activations", std::string("uint8-token")}}, WeightStyle::QOperator, x, {"MatMulInteger"}),
      expected(x, by_extremes));
}

TEST(InterchangeActivations, KeepTheCalibratedScale) {
  const Tensor x = wave({kRows, kInputs}, 2.5F, 0.4F);  // beyond what the codes reach
  for (const auto& [low, high] : {std::pair<int64_t, int64_t>{-128, 127}, {-40, 215}, {0, 255}}) {
    const float scale = 0.01F;
    const Attributes attributes = {{"activations", std::string("static")},
                                   {"activation_scale", scale},
                                   {"activation_low", low},
                                   {"activation_high", high}};
    const std::vector<float> wanted = expected(x, [&](const std::vector<double>& row) {
      std::vector<double> rounded;
      for (const double value : row) {
        const double code = std::nearbyint(static_cast<float>(value) / scale);
        rounded.push_back(std::clamp(code, static_cast<double>(low), static_cast<double>(high)) *
                          static_cast<double>(scale));
      }
      return rounded;
    });
    expect_near(exported(attributes, WeightStyle::Qdq, x, {"QuantizeLinear", "DequantizeLinear", "MatMul"}),
                wanted);
    expect_near(exported(attributes, WeightStyle::QOperator, x, {"QuantizeLinear", "MatMulInteger"}), wanted);
  }
}

TEST(Interchange, RefusesOperatorsWithoutAForm) {
  Graph graph("attention");
  Rewriter rewriter(graph);
  Value* x = rewriter.add_input("x", {DType::F32, SymShape{Dim(2), Dim(8)}});
  Node* node = rewriter.add_node(
      {.op = "SelectRows", .domain = std::string(kQuernDomain), .name = "rows", .inputs = {x}});
  rewriter.add_output(node->output(), "y");
  rewriter.commit();
  try {
    to_interchange(graph, {});
    FAIL() << "it was exported";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Unsupported);
    EXPECT_NE(std::string(error.what()).find("rows"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace quern::passes
