// A node by the kernels of plain graphs against the reference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "ir/rewriter.h"
#include "runtime/interpreter.h"

namespace quern::runtime {

struct Case {
  std::string op;
  std::vector<Shape> inputs;  // an empty one is omitted, a scalar is [1] reshaped by `scalars`
  Attributes attributes = {};
  std::string implementation = "cpu";  // that must run where nothing is forced
  int opset = 0;
  std::string domain = {};
  DType dtype = DType::F32;
  int outputs = 1;  // of the node; all are compared
};

inline Tensor random_tensor(DType dtype, const Shape& shape, uint32_t seed) {
  std::mt19937 random(seed);
  Tensor tensor = Tensor::zeros(dtype, shape);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    if (dtype == DType::F32) {
      tensor.set(i, std::normal_distribution<float>()(random));
    } else {
      tensor.set_int(i, static_cast<int64_t>(random() >> 8));
    }
  }
  return tensor;
}

inline std::string described(const Case& c) {
  std::string text = c.op;
  for (const Shape& shape : c.inputs) text += " " + quern::to_string(shape);
  return text;
}

inline std::vector<Tensor> run(const Case& c, const std::vector<Tensor>& tensors, const std::string& forced,
                               std::string& ran) {
  Graph graph;
  Rewriter rewriter(graph);
  std::vector<Value*> values;
  NamedValues given;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) {
      values.push_back(nullptr);
      continue;
    }
    const std::string name = "x" + std::to_string(i);
    SymShape shape;
    for (const int64_t dim : tensors[i].shape()) shape.push_back(dim);
    values.push_back(rewriter.add_input(name, {tensors[i].dtype(), std::move(shape)}));
    given[name] = tensors[i];
  }
  std::vector<OutputSpec> outputs(static_cast<size_t>(c.outputs));
  Node* node = rewriter.add_node({.op = c.op,
                                  .domain = c.domain,
                                  .opset = c.opset,
                                  .name = "node",
                                  .inputs = values,
                                  .attributes = c.attributes,
                                  .outputs = std::move(outputs)});
  for (int i = 0; i < c.outputs; ++i)
    rewriter.add_output(node->output(static_cast<size_t>(i)), "y" + std::to_string(i));
  rewriter.commit();
  RunOptions options;
  options.implementation = forced;
  options.on_kernel = [&](const Node&, std::string_view name) { ran = std::string(name); };
  const NamedValues results = Interpreter(graph).run(given, options);
  std::vector<Tensor> dense;
  for (int i = 0; i < c.outputs; ++i) dense.push_back(results.at("y" + std::to_string(i)).dense());
  return dense;
}

inline std::vector<Tensor> random_inputs(const Case& c) {
  std::vector<Tensor> tensors;
  for (const Shape& shape : c.inputs) {
    tensors.push_back(
        shape.empty() ? Tensor() : random_tensor(c.dtype, shape, static_cast<uint32_t>(tensors.size() + 1)));
  }
  return tensors;
}

// `additions`: of the longest sum, whose rounding errors grow like its square root.
inline void expect_like_reference(const Case& c, const std::vector<Tensor>& tensors, int64_t additions) {
  std::string ran;
  std::string oracle;
  const std::vector<Tensor> all_expected = run(c, tensors, "reference", oracle);
  const std::vector<Tensor> all_found = run(c, tensors, "", ran);
  EXPECT_EQ(oracle, "reference") << described(c);
  EXPECT_EQ(ran, c.implementation) << described(c);
  for (size_t output = 0; output < all_expected.size(); ++output) {
    const Tensor& expected = all_expected[output];
    const Tensor& found = all_found[output];
    ASSERT_EQ(found.dtype(), expected.dtype()) << described(c);
    ASSERT_EQ(found.shape(), expected.shape()) << described(c);
    double largest = 1;
    for (int64_t i = 0; i < expected.size(); ++i) largest = std::max(largest, std::fabs(expected.at(i)));
    const double error =
        is_floating(expected.dtype()) ? 2e-6 * largest * std::sqrt(static_cast<double>(additions)) : 0;
    for (int64_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(found.at(i), expected.at(i), error)
          << described(c) << " output " << output << " element " << i;
    }
  }
}

inline void expect_like_reference(const Case& c, int64_t additions = 1) {
  expect_like_reference(c, random_inputs(c), additions);
}

using Ints = std::vector<int64_t>;

}  // namespace quern::runtime
