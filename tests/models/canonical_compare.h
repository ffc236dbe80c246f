// Whether two canonical graphs compute the same thing by the same operators, whatever their values are
// called, how their weights are stored and in which order their nodes stand.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <variant>

#include "ir/error.h"
#include "ir/graph.h"
#include "ir/schema.h"
#include "runtime/runtime_value.h"
#include "tests/support/graph_compare.h"

namespace quern::test {

struct CanonicalTolerance {
  double weights =
      1e-6;  // relative to the largest of a tensor; negative: weights of products and tables may differ
  double constants = 1e-5;  // of norms, frequencies, biases and attributes
};

class CanonicalComparison {
 public:
  explicit CanonicalComparison(CanonicalTolerance tolerance) : tolerance_(tolerance) {}

  // Empty, or the first difference on the way up from the outputs.
  std::string difference(const Graph& a, const Graph& b) {
    if (a.outputs().size() != b.outputs().size()) return "another number of outputs";
    for (size_t i = 0; i < a.outputs().size(); ++i) {
      std::string found = values(a.outputs()[i].value, b.outputs()[i].value, false);
      if (!found.empty()) return found;
    }
    return {};
  }

 private:
  std::string values(const Value* a, const Value* b, bool weight) {
    if (a == nullptr || b == nullptr) return a == b ? "" : "an input is missing";
    if (a->is_constant() && b->is_constant()) return constants(*a, *b, weight);
    const Node* x = a->producer();
    const Node* y = b->producer();
    if (x == nullptr || y == nullptr) {
      return x == y && a->name() == b->name() ? "" : concat("'", a->name(), "' against '", b->name(), "'");
    }
    if (a->output_index() != b->output_index())
      return concat(describe(*x), ": another output of ", describe(*y));
    const auto known = nodes_.find({x, y});
    if (known != nodes_.end()) return known->second;
    return nodes_[{x, y}] = nodes(*x, *y);
  }

  std::string nodes(const Node& x, const Node& y) {
    const std::string both = concat(describe(x), " against ", describe(y));
    if (x.op() != y.op() || x.domain() != y.domain()) return both;
    std::string found = attributes(x, y);
    if (!found.empty()) return concat(both, ": ", found);
    if (x.inputs().size() != y.inputs().size()) return concat(both, ": another number of inputs");
    const bool commutes = x.is("Add") || x.is("Mul");
    const auto inputs = [&](bool swapped) {
      for (size_t i = 0; i < x.inputs().size(); ++i) {
        const bool weight =
            (x.is("Linear", kQuernDomain) && i == 1) || (x.is("Embedding", kQuernDomain) && i == 0);
        std::string difference = values(x.input(i), y.input(swapped && i < 2 ? 1 - i : i), weight);
        if (!difference.empty()) return difference;
      }
      return std::string();
    };
    found = inputs(false);
    return found.empty() || !commutes ? found : inputs(true).empty() ? "" : found;
  }

  std::string attributes(const Node& x, const Node& y) const {
    for (const auto& [name, attribute] : x.attributes()) {
      const auto other = y.attributes().find(name);
      if (other == y.attributes().end()) return "no " + name;
      const auto* number = std::get_if<float>(&attribute);
      const auto* theirs = std::get_if<float>(&other->second);
      const bool same = number && theirs
                            ? std::abs(*number - *theirs) <= tolerance_.constants * std::abs(*number)
                            : static_cast<bool>(same_attribute(attribute, other->second));
      if (!same) return "another " + name;
    }
    return x.attributes().size() == y.attributes().size() ? "" : "more attributes";
  }

  std::string constants(const Value& a, const Value& b, bool weight) const {
    const Tensor x = runtime::RuntimeValue(*a.constant()).dense();
    const Tensor y = runtime::RuntimeValue(*b.constant()).dense();
    if (x.shape() != y.shape()) {
      return concat("'", a.name(), "' ", to_string(x.shape()), " against '", b.name(), "' ",
                    to_string(y.shape()));
    }
    const double allowed = weight ? tolerance_.weights : tolerance_.constants;
    if (allowed < 0) return {};
    double largest = 0;
    for (int64_t i = 0; i < x.size(); ++i) largest = std::max(largest, std::abs(x.at(i)));
    for (int64_t i = 0; i < x.size(); ++i) {
      // Frequencies fall by orders of magnitude: each is held to its own size where it is that small.
      const double scale = weight ? largest : std::abs(x.at(i)) + 1e-3 * largest;
      if (std::abs(x.at(i) - y.at(i)) > allowed * scale) {
        return concat("'", a.name(), "' and '", b.name(), "' differ at ", i, ": ", x.at(i), " and ", y.at(i));
      }
    }
    return {};
  }

  CanonicalTolerance tolerance_;
  std::map<std::pair<const Node*, const Node*>, std::string> nodes_;
};

}  // namespace quern::test
