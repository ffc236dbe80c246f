// Evaluates a canonical decoder over a whole text at once, in double precision, without cache, fusion or
// threads: the oracle of the executor. Written from docs/canonical-graph.md alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace quern::test {

class NaiveDecoder {
 public:
  explicit NaiveDecoder(const Graph& graph) : graph_(graph) {}

  using Rows = std::vector<std::vector<double>>;

  // Once `at` tokens of the text have been computed, those at places first .. first + count - 1 of what is
  // still there go: tokens behind see the others at consecutive positions.
  struct Removal {
    size_t at;
    size_t first;
    size_t count;
  };

  // The logits of every token.
  Rows run(const std::vector<int64_t>& ids, const std::vector<Removal>& removals = {}) {
    ids_ = ids;
    values_.clear();
    turns_.clear();
    seen_.clear();
    removes_ = !removals.empty();
    std::vector<size_t> there;
    for (size_t t = 0; t < ids.size(); ++t) {
      for (const Removal& removal : removals) {
        if (removal.at != t) continue;
        const auto from = there.begin() + static_cast<int64_t>(removal.first);
        there.erase(from, from + static_cast<int64_t>(removal.count));
      }
      there.push_back(t);
      seen_.push_back(there);
    }
    for (const Node* node : graph_.nodes()) compute(*node);
    return values_.at(graph_.outputs().front().value);
  }

 private:
  const Rows& rows(const Value* value) { return values_.at(value); }

  static std::vector<double> constant(const Value* value) {
    Tensor tensor;
    if (value->tensor() != nullptr) tensor = *value->tensor();
    if (value->quantized() != nullptr) tensor = dequantize(*value->quantized());
    if (value->packed() != nullptr) tensor = value->packed()->dequantize();
    const std::vector<float> floats = tensor.to_floats();
    return {floats.begin(), floats.end()};
  }

  template <class Function>
  void map(const Node& node, Function f) {
    Rows out = rows(node.input(0));
    for (auto& row : out) {
      for (double& x : row) x = f(x);
    }
    values_[node.output()] = out;
  }

  template <class Function>
  void zip(const Node& node, Function f) {
    Rows out = rows(node.input(0));
    const Rows& other = rows(node.input(1));
    for (size_t t = 0; t < out.size(); ++t) {
      for (size_t i = 0; i < out[t].size(); ++i) out[t][i] = f(out[t][i], other[t][i]);
    }
    values_[node.output()] = out;
  }

  static void normalize(std::vector<double>& row, const std::vector<double>& w, const std::vector<double>& b,
                        double epsilon, bool layer) {
    const size_t size = w.size();
    for (size_t first = 0; first < row.size(); first += size) {
      double mean = 0, square = 0;
      for (size_t i = 0; i < size && layer; ++i) mean += row[first + i] / static_cast<double>(size);
      for (size_t i = 0; i < size; ++i)
        square += std::pow(row[first + i] - mean, 2) / static_cast<double>(size);
      for (size_t i = 0; i < size; ++i) {
        row[first + i] =
            (row[first + i] - mean) / std::sqrt(square + epsilon) * w[i] + (b.empty() ? 0 : b[i]);
      }
    }
  }

  void norm(const Node& node, size_t first_weight, Rows x, bool layer) {
    const std::vector<double> w = constant(node.input(first_weight));
    std::vector<double> b;
    if (layer && node.input(first_weight + 1) != nullptr) b = constant(node.input(first_weight + 1));
    for (auto& row : x) normalize(row, w, b, node.float_attribute("epsilon", 0), layer);
    values_[node.output()] = x;
  }

  void linear(const Node& node) {
    const std::vector<double> w = constant(node.input(1));
    std::vector<double> b;
    if (node.input(2) != nullptr) b = constant(node.input(2));
    Rows out;
    for (const auto& x : rows(node.input(0))) {
      const size_t n = w.size() / x.size();
      auto& y = out.emplace_back(n, 0.0);
      for (size_t i = 0; i < n; ++i) {
        for (size_t k = 0; k < x.size(); ++k) y[i] += x[k] * w[i * x.size() + k];
        if (!b.empty()) y[i] += b[i];
      }
    }
    values_[node.output()] = out;
  }

  void embedding(const Node& node) {
    const std::vector<double> table = constant(node.input(0));
    const auto width = static_cast<size_t>(node.input(0)->shape()[1].constant());
    Rows out;
    for (size_t t = 0; t < ids_.size(); ++t) {
      const size_t id = node.input(1)->name() == "positions" ? t : static_cast<size_t>(ids_[t]);
      out.emplace_back(table.begin() + static_cast<int64_t>(id * width),
                       table.begin() + static_cast<int64_t>((id + 1) * width));
    }
    values_[node.output()] = out;
  }

  void rotary(const Node& node) {
    const int64_t original = node.int_attribute("original_context", 0);
    const bool extended = node.input(3) != nullptr && static_cast<int64_t>(ids_.size()) > original;
    const std::vector<double> frequencies = constant(node.input(extended ? 3 : 2));
    const double scale = extended ? node.float_attribute("long_scale", 1) : node.float_attribute("scale", 1);
    const size_t pairs = frequencies.size(), size = static_cast<size_t>(node.int_attribute("head_size", 0));
    const bool interleaved = node.int_attribute("interleaved", 0) != 0;
    const auto turn = [=](std::vector<double>& row, size_t position) {
      for (size_t head = 0; head < row.size(); head += size) {
        for (size_t i = 0; i < pairs; ++i) {
          double& a = row[head + (interleaved ? 2 * i : i)];
          double& b = row[head + (interleaved ? 2 * i + 1 : i + pairs)];
          const double c = std::cos(static_cast<double>(position) * frequencies[i]) * scale;
          const double s = std::sin(static_cast<double>(position) * frequencies[i]) * scale;
          const double x = a;
          a = x * c - b * s;
          b = b * c + x * s;
        }
      }
    };
    Rows& out = values_[node.output()] = rows(node.input(0));
    // The position of a key depends on who looks at it: attention turns it then.
    if (removes_) {
      turns_[node.output()] = turn;
      return;
    }
    for (size_t t = 0; t < out.size(); ++t) turn(out[t], t);
  }

  std::vector<double> at_position(const Value* value, size_t row, size_t position) {
    std::vector<double> turned = rows(value)[row];
    const auto turn = turns_.find(value);
    if (turn != turns_.end()) turn->second(turned, position);
    return turned;
  }

  void attention(const Node& node) {
    const auto heads = static_cast<size_t>(node.int_attribute("heads", 0));
    const auto kv_heads = static_cast<size_t>(node.int_attribute("kv_heads", 0));
    const auto size = static_cast<size_t>(node.int_attribute("head_size", 0));
    const auto value_size =
        static_cast<size_t>(node.int_attribute("value_head_size", node.int_attribute("head_size", 0)));
    const double cap = node.float_attribute("softcap", 0);
    const auto window = static_cast<size_t>(node.int_attribute("window", 0));
    const double scale =
        node.float_attribute("scale", static_cast<float>(1 / std::sqrt(static_cast<double>(size))));
    const std::vector<double> sinks =
        node.input(3) != nullptr ? constant(node.input(3)) : std::vector<double>{};
    const std::vector<double> slopes =
        node.input(4) != nullptr ? constant(node.input(4)) : std::vector<double>{};
    const Rows& v = rows(node.input(2));
    Rows out(v.size(), std::vector<double>(heads * value_size));
    for (size_t t = 0; t < out.size(); ++t) {
      const std::vector<size_t>& seen = seen_[t];
      const size_t position = seen.size() - 1;
      const size_t first = window > 0 && position + 1 > window ? position + 1 - window : 0;
      const std::vector<double> q = at_position(node.input(0), t, position);
      Rows keys;
      for (size_t j = first; j <= position; ++j) keys.push_back(at_position(node.input(1), seen[j], j));
      for (size_t h = 0; h < heads; ++h) {
        const size_t kv = h * kv_heads / heads;
        std::vector<double> weights;
        double total = sinks.empty() ? 0 : std::exp(sinks[h]);
        for (size_t j = first; j <= position; ++j) {
          double s = 0;
          for (size_t d = 0; d < size; ++d) s += q[h * size + d] * keys[j - first][kv * size + d];
          s *= scale;
          if (cap > 0) s = cap * std::tanh(s / cap);
          if (!slopes.empty()) s += slopes[h] * (static_cast<double>(j) - static_cast<double>(position));
          weights.push_back(std::exp(s));
          total += weights.back();
        }
        for (size_t d = 0; d < value_size; ++d) {
          double sum = 0;
          for (size_t j = first; j <= position; ++j)
            sum += weights[j - first] * v[seen[j]][kv * value_size + d];
          out[t][h * value_size + d] = sum / total;
        }
      }
    }
    values_[node.output()] = out;
  }

  void skip_norm(const Node& node, bool layer) {
    Rows sum = rows(node.input(0));
    const Rows& skip = rows(node.input(1));
    for (size_t t = 0; t < sum.size(); ++t) {
      for (size_t i = 0; i < sum[t].size(); ++i) sum[t][i] += skip[t][i];
    }
    if (node.output(3) != nullptr) values_[node.output(3)] = sum;
    norm(node, 2, sum, layer);
  }

  void split(const Node& node) {
    const std::vector<int64_t> sizes = node.input(1)->tensor()->to_ints();
    int64_t offset = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      Rows part;
      for (const auto& row : rows(node.input(0))) {
        part.emplace_back(row.begin() + offset, row.begin() + offset + sizes[i]);
      }
      values_[node.output(i)] = part;
      offset += sizes[i];
    }
  }

  void compute(const Node& node) {
    const std::string& op = node.op();
    if (op == "Linear") return linear(node);
    if (op == "Embedding") return embedding(node);
    if (op == "Rotary") return rotary(node);
    if (op == "CachedAttention") return attention(node);
    if (op == "Split") return split(node);
    if (op == "SelectRows" || op == "Reshape") return map(node, [](double x) { return x; });
    if (op == "RMSNormalization") return norm(node, 1, rows(node.input(0)), false);
    if (op == "LayerNormalization") return norm(node, 1, rows(node.input(0)), true);
    if (op == "SkipSimplifiedLayerNormalization") return skip_norm(node, false);
    if (op == "SkipLayerNormalization") return skip_norm(node, true);
    if (op == "Add") return zip(node, [](double a, double b) { return a + b; });
    if (op == "Mul") return zip(node, [](double a, double b) { return a * b; });
    if (op == "Swish") return map(node, [](double x) { return x / (1 + std::exp(-x)); });
    if (op == "Gelu") {
      return map(node, [](double x) {
        return 0.5 * x * (1 + std::tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
      });
    }
    throw std::logic_error("the oracle lacks " + op);
  }

  const Graph& graph_;
  std::vector<int64_t> ids_;
  std::map<const Value*, Rows> values_;
  bool removes_ = false;
  std::vector<std::vector<size_t>> seen_;  // for each token the tokens that it sees, by position
  std::map<const Value*, std::function<void(std::vector<double>&, size_t)>> turns_;
};

}  // namespace quern::test
