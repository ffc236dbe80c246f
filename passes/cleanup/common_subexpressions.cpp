#include "passes/cleanup/common_subexpressions.h"

#include <optional>
#include <unordered_map>

#include "ir/rewriter.h"
#include "passes/cleanup/constant_content.h"
#include "passes/cleanup/node_facts.h"

namespace quern::passes {
namespace {

constexpr int64_t kMaxAttributeBytes = 4096;

template <class T>
std::string raw_bytes(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// Injective for attributes of one type; nothing for sub-graphs, types and large tensors.
struct AttributeKey {
  std::optional<std::string> operator()(int64_t value) const { return "i" + raw_bytes(value); }
  std::optional<std::string> operator()(float value) const { return "f" + raw_bytes(value); }
  std::optional<std::string> operator()(const std::string& value) const {
    return concat("s", value.size(), ":", value);
  }
  template <class T>
  std::optional<std::string> operator()(const std::vector<T>& values) const {
    std::string key = concat("l", values.size(), ":");
    for (const T& value : values) key += *(*this)(value);
    return key;
  }
  std::optional<std::string> operator()(const Tensor& tensor) const {
    if (tensor.dtype() == DType::String || tensor.byte_size() > kMaxAttributeBytes) return std::nullopt;
    return "t" + fingerprint(Constant(tensor));
  }
  std::optional<std::string> operator()(const std::shared_ptr<Graph>&) const { return std::nullopt; }
  std::optional<std::string> operator()(const ValueType&) const { return std::nullopt; }
};

// Later values to the earlier ones that they equal.
using Replaced = std::unordered_map<const Value*, Value*>;
// What is known where a graph begins, by key: constants and nodes of the graphs around it.
struct Scope {
  std::unordered_multimap<std::string, Value*> constants;
  std::unordered_map<std::string, Node*> nodes;
};

class Numbering {
 public:
  explicit Numbering(PassReport& report) : report_(report) {}

  void run(Graph& graph) {
    visit(graph, {});
    for (auto& [each, pairs] : found_) {
      Rewriter rewriter(*each);
      for (const auto& [old, by] : pairs) rewriter.replace(old, by);
      rewriter.commit();
    }
  }

 private:
  void visit(Graph& graph, Scope scope) {
    std::vector<std::pair<Value*, Value*>> pairs;
    for (Value* value : graph.constants()) visit_constant(value, scope, pairs);
    for (Node* node : graph.nodes()) {
      for (Graph* sub : node->subgraphs()) visit(*sub, scope);
      visit_node(node, scope, pairs);
    }
    found_.emplace_back(&graph, std::move(pairs));
  }

  void visit_constant(Value* value, Scope& scope, std::vector<std::pair<Value*, Value*>>& pairs) {
    const std::string key = fingerprint(*value->constant());
    const auto [first, last] = scope.constants.equal_range(key);
    for (auto it = first; it != last; ++it) {
      if (!same_content(*value->constant(), *it->second->constant())) continue;
      replace(value, it->second, pairs);
      return;
    }
    scope.constants.emplace(key, value);
  }

  void visit_node(Node* node, Scope& scope, std::vector<std::pair<Value*, Value*>>& pairs) {
    const std::optional<std::string> key = node_key(*node);
    if (!key) return;
    const auto [found, fresh] = scope.nodes.emplace(*key, node);
    if (fresh) return;
    const Node& earlier = *found->second;
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      if (node->output(i) != nullptr && earlier.output(i) == nullptr) return;
    }
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      if (node->output(i) != nullptr) replace(node->output(i), earlier.output(i), pairs);
    }
  }

  void replace(Value* old, Value* by, std::vector<std::pair<Value*, Value*>>& pairs) {
    replaced_[old] = by;
    pairs.emplace_back(old, by);
    ++report_.changes;
  }

  std::optional<std::string> node_key(const Node& node) const {
    if (!is_pure(node) || !node.subgraphs().empty()) return std::nullopt;
    std::string key =
        concat(node.domain(), "|", node.op(), "|", node.opset(), "|", node.outputs().size(), "|");
    for (const Value* input : node.inputs()) {
      const auto found = replaced_.find(input);
      key += raw_bytes(found != replaced_.end() ? found->second : input);
    }
    for (const auto& [name, attribute] : node.attributes()) {
      const std::optional<std::string> part = std::visit(AttributeKey{}, attribute);
      if (!part) return std::nullopt;
      key += concat("|", name, "=") + *part;
    }
    return key;
  }

  PassReport& report_;
  Replaced replaced_;
  std::vector<std::pair<Graph*, std::vector<std::pair<Value*, Value*>>>> found_;
};

}  // namespace

CommonSubexpressions::CommonSubexpressions()
    : Pass("common-subexpressions", "compute once what is computed twice, and keep equal constants once") {}

PassReport CommonSubexpressions::run(Graph& graph, PassContext&) {
  PassReport report;
  Numbering(report).run(graph);
  return report;
}

}  // namespace quern::passes
