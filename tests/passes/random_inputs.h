// Random inputs that fit a graph, and the comparison of two results.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <string>

#include "ir/graph.h"
#include "runtime/interpreter.h"

namespace quern::test {

// Makes every input of a graph from its type. The same graph inputs get the same numbers, whatever a pass did
// in between: the generator is seeded by the input's name.
class RandomInputs {
 public:
  // Sizes of symbolic dimensions; a symbol that is not set gets 2, 3, 4, ... in order of appearance.
  std::map<std::string, int64_t> sizes;
  // Integers lie in [0, int_limit), but those of `fixed` are as given.
  int64_t int_limit = 4;
  std::map<std::string, Tensor> fixed;

  runtime::NamedValues for_graph(const Graph& graph) {
    runtime::NamedValues inputs;
    for (const Value* input : graph.inputs()) {
      const auto found = fixed.find(input->name());
      inputs.emplace(input->name(), found != fixed.end() ? found->second : make(*input));
    }
    return inputs;
  }

 private:
  Tensor make(const Value& input) {
    Shape shape;
    for (const Dim& dim : input.shape()) {
      std::map<std::string, Dim> values;
      for (const std::string& symbol : dim.symbols()) {
        values.emplace(symbol, sizes.emplace(symbol, 2 + static_cast<int64_t>(sizes.size())).first->second);
      }
      shape.push_back(dim.substitute(values).constant());
    }
    Tensor tensor = Tensor::zeros(input.dtype(), shape);
    std::seed_seq seed(input.name().begin(), input.name().end());
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < tensor.size(); ++i) {
      if (is_floating(input.dtype())) {
        tensor.set(i, static_cast<double>(normal(random)));
      } else {
        const int64_t limit = input.dtype() == DType::Bool ? 2 : int_limit;
        tensor.set_int(i, static_cast<int64_t>(random() % static_cast<uint64_t>(limit)));
      }
    }
    return tensor;
  }
};

// Element by element, NaN equal to NaN; integers exactly. Reports the first element that differs.
inline void expect_close(const Tensor& wanted, const Tensor& given, double absolute, double relative,
                         const std::string& name = "tensor") {
  ASSERT_EQ(to_string(wanted.dtype()), to_string(given.dtype())) << name;
  ASSERT_EQ(wanted.shape(), given.shape()) << name;
  for (int64_t i = 0; i < wanted.size(); ++i) {
    const double a = wanted.at(i);
    const double b = given.at(i);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    const bool close = is_floating(wanted.dtype()) && std::abs(a - b) <= absolute + relative * std::abs(a);
    ASSERT_TRUE(close) << name << " element " << i << ": wanted " << a << ", got " << b;
  }
}

inline void expect_close(const runtime::NamedValues& wanted, const runtime::NamedValues& given,
                         double absolute, double relative) {
  ASSERT_EQ(wanted.size(), given.size());
  for (const auto& [name, value] : wanted) {
    ASSERT_TRUE(given.contains(name)) << "output '" << name << "' is gone";
    expect_close(value.dense(), given.at(name).dense(), absolute, relative, "output '" + name + "'");
  }
}

}  // namespace quern::test
