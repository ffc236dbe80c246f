// Whether two graphs are the same in everything but the identity of their nodes and values.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <type_traits>

#include "ir/graph.h"

namespace quern::test {

// Dimensions without a name ("?7") all become "?": their numbers differ from run to run.
inline std::string without_dim_numbers(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    result += text[i];
    if (text[i] != '?') continue;
    while (i + 1 < text.size() && text[i + 1] >= '0' && text[i + 1] <= '9') ++i;
  }
  return result;
}

inline bool same_tensor(const Tensor& a, const Tensor& b) {
  if (a.dtype() == DType::String && b.dtype() == DType::String) {
    return a.shape() == b.shape() && a.strings() == b.strings();
  }
  return identical(a, b);
}

inline bool same_constant(const Constant& a, const Constant& b) {
  if (a.index() != b.index()) return false;
  if (const auto* tensor = std::get_if<Tensor>(&a)) return same_tensor(*tensor, std::get<Tensor>(b));
  if (const auto* packed = std::get_if<PackedTensor>(&a)) {
    const auto& other = std::get<PackedTensor>(b);
    return packed->spec() == other.spec() && identical(packed->bytes(), other.bytes());
  }
  const auto& x = std::get<QuantizedTensor>(a);
  const auto& y = std::get<QuantizedTensor>(b);
  return x.scheme == y.scheme && identical(x.codes, y.codes) && identical(x.scales, y.scales) &&
         (x.zero_points.defined() ? identical(x.zero_points, y.zero_points) : !y.zero_points.defined());
}

testing::AssertionResult same_graph(const Graph& a, const Graph& b);

inline bool same_content(const Tensor& a, const Tensor& b) {
  return same_tensor(a, b);
}
inline bool same_content(const std::shared_ptr<Graph>& a, const std::shared_ptr<Graph>& b) {
  return static_cast<bool>(same_graph(*a, *b));
}
inline bool same_content(const ValueType& a, const ValueType& b) {
  return without_dim_numbers(to_string(a)) == without_dim_numbers(to_string(b));
}
inline bool same_content(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}
inline bool same_content(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](float x, float y) { return same_content(x, y); });
}
template <class T>
bool same_content(const T& a, const T& b) {
  return a == b;
}

inline testing::AssertionResult same_attribute(const Attribute& a, const Attribute& b) {
  const bool same = a.index() == b.index() && std::visit(
                                                  [&](const auto& value) {
                                                    using T = std::decay_t<decltype(value)>;
                                                    return same_content(value, std::get<T>(b));
                                                  },
                                                  a);
  return same ? testing::AssertionSuccess() : testing::AssertionFailure() << "another value";
}

inline testing::AssertionResult same_node(const Node& a, const Node& b) {
  if (a.name() != b.name() || a.opset() != b.opset()) {
    return testing::AssertionFailure() << describe(a) << " of version " << a.opset() << " against "
                                       << describe(b) << " of version " << b.opset();
  }
  if (a.attributes().size() != b.attributes().size()) {
    return testing::AssertionFailure() << describe(a) << ": other attributes";
  }
  for (const auto& [name, value] : a.attributes()) {
    const auto other = b.attributes().find(name);
    if (other == b.attributes().end()) return testing::AssertionFailure() << describe(a) << ": no " << name;
    const auto same = same_attribute(value, other->second);
    if (!same) return testing::AssertionFailure() << describe(a) << ": " << name << ": " << same.message();
  }
  return testing::AssertionSuccess();
}

inline testing::AssertionResult same_graph(const Graph& a, const Graph& b) {
  const std::string text_a = without_dim_numbers(to_text(a));
  const std::string text_b = without_dim_numbers(to_text(b));
  if (text_a != text_b) {
    size_t at = 0;
    while (at < std::min(text_a.size(), text_b.size()) && text_a[at] == text_b[at]) ++at;
    at = at < 100 ? 0 : at - 100;
    return testing::AssertionFailure() << "the graphs differ:\n..." << text_a.substr(at, 400)
                                       << "...\nagainst:\n..." << text_b.substr(at, 400) << "...";
  }
  // An exported file has at least the IR version whose rules it is written by.
  auto metadata_a = a.metadata();
  auto metadata_b = b.metadata();
  metadata_a.erase("onnx.ir_version");
  metadata_b.erase("onnx.ir_version");
  if (metadata_a != metadata_b) return testing::AssertionFailure() << "other metadata";
  if (a.opsets() != b.opsets()) return testing::AssertionFailure() << "other operator sets";
  for (const Value* value : a.constants()) {
    const Value* other = b.find_value(value->name());
    if (other == nullptr || !other->is_constant() || !same_constant(*value->constant(), *other->constant())) {
      return testing::AssertionFailure() << "constant " << value->name() << " differs";
    }
  }
  for (size_t i = 0; i < a.nodes().size(); ++i) {
    const auto same = same_node(*a.nodes()[i], *b.nodes()[i]);
    if (!same) return same;
  }
  return testing::AssertionSuccess();
}

}  // namespace quern::test
