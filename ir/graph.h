// The graph: nodes and values in SSA form. Read through const accessors; changed only through ir/rewriter.h.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ir/dim.h"
#include "ir/packed_tensor.h"
#include "ir/quantized_tensor.h"
#include "ir/tensor.h"

namespace quern {

class Graph;
class Node;
class Value;

// What is known of a value before running: element type, and shape where the rank is known.
struct ValueType {
  enum class Kind : uint8_t { Tensor, Sequence, Optional };
  DType dtype = DType::Undefined;
  std::optional<SymShape> shape;
  Kind kind = Kind::Tensor;  // Sequence and Optional: of tensors of that dtype and shape

  bool operator==(const ValueType&) const = default;
};
std::string to_string(const ValueType& type);  // "f32 [batch, 4]"

// The data of a constant value.
using Constant = std::variant<Tensor, QuantizedTensor, PackedTensor>;
// The logical type: a quantized or packed tensor is f32 of its logical shape.
ValueType type_of(const Constant& constant);
int64_t byte_size(const Constant& constant);

using Attribute = std::variant<int64_t, float, std::string, std::vector<int64_t>, std::vector<float>,
                               std::vector<std::string>, Tensor, std::shared_ptr<Graph>, ValueType>;
using Attributes = std::map<std::string, Attribute>;

struct Use {
  Node* node;  // may live in a sub-graph of the value's graph
  int input;
  bool operator==(const Use&) const = default;
};

class Value {
 public:
  const std::string& name() const { return name_; }
  const ValueType& type() const { return type_; }
  DType dtype() const { return type_.dtype; }
  bool has_shape() const { return type_.shape.has_value(); }
  // Throws Error{Internal} if the rank is not known.
  const SymShape& shape() const;

  // The node whose output this is; null for graph inputs and constants.
  Node* producer() const { return producer_; }
  int output_index() const { return output_index_; }
  const std::vector<Use>& uses() const { return uses_; }
  Graph* graph() const { return graph_; }

  bool is_constant() const { return constant_ != nullptr; }
  const Constant* constant() const { return constant_.get(); }
  // The plain tensor of a constant value, or null (not constant, or of another kind).
  const Tensor* tensor() const { return constant_ ? std::get_if<Tensor>(constant_.get()) : nullptr; }
  const QuantizedTensor* quantized() const {
    return constant_ ? std::get_if<QuantizedTensor>(constant_.get()) : nullptr;
  }
  const PackedTensor* packed() const {
    return constant_ ? std::get_if<PackedTensor>(constant_.get()) : nullptr;
  }

  // The elements of a small integer tensor of rank 0 or 1 as symbolic expressions, where shape inference
  // knows them: what Shape, Gather, Concat and arithmetic make of dimensions.
  const std::optional<std::vector<Dim>>& elements() const { return elements_; }

 private:
  friend class Graph;
  friend class Rewriter;
  friend class ShapeInference;
  std::string name_;
  ValueType type_;
  Node* producer_ = nullptr;
  int output_index_ = 0;
  std::vector<Use> uses_;
  Graph* graph_ = nullptr;
  std::shared_ptr<const Constant> constant_;
  std::optional<std::vector<Dim>> elements_;
};

class Node {
 public:
  const std::string& domain() const { return domain_; }  // "" is ai.onnx
  const std::string& op() const { return op_; }
  // The version of its domain's operator set that the node is written in.
  int opset() const { return opset_; }
  const std::string& name() const { return name_; }
  bool is(std::string_view op, std::string_view domain = "") const { return op_ == op && domain_ == domain; }

  const std::vector<Value*>& inputs() const { return inputs_; }    // null: an omitted optional input
  const std::vector<Value*>& outputs() const { return outputs_; }  // null: an omitted optional output
  // The input or output at `i`, null where it is omitted or past the end.
  Value* input(size_t i) const { return i < inputs_.size() ? inputs_[i] : nullptr; }
  Value* output(size_t i = 0) const { return i < outputs_.size() ? outputs_[i] : nullptr; }
  Graph* graph() const { return graph_; }

  const Attributes& attributes() const { return attributes_; }
  bool has_attribute(const std::string& name) const { return attributes_.contains(name); }
  // The attribute's value, or `fallback` where it is absent.
  // Throws Error{InvalidModel} naming node and attribute if it has another type.
  int64_t int_attribute(const std::string& name, int64_t fallback) const;
  float float_attribute(const std::string& name, float fallback) const;
  std::string string_attribute(const std::string& name, const std::string& fallback) const;
  std::vector<int64_t> ints_attribute(const std::string& name, const std::vector<int64_t>& fallback) const;
  std::vector<float> floats_attribute(const std::string& name, const std::vector<float>& fallback) const;
  // The attribute of type T, or null where it is absent. Throws as above on another type.
  template <class T>
  const T* attribute(const std::string& name) const;
  // Null where absent.
  Graph* subgraph(const std::string& name) const;
  std::vector<Graph*> subgraphs() const;

 private:
  friend class Graph;
  friend class Rewriter;
  [[noreturn]] void wrong_attribute_type(const std::string& name) const;

  std::string domain_;
  std::string op_;
  int opset_ = 0;
  std::string name_;
  std::vector<Value*> inputs_;
  std::vector<Value*> outputs_;
  Attributes attributes_;
  Graph* graph_ = nullptr;
};

// "node 'layers.0/MatMul' (MatMul)", with the domain where it is not ai.onnx; for error messages.
std::string describe(const Node& node);

struct GraphOutput {
  Value* value;
  std::string name;  // what the caller of the model knows it by; survives a replacement of the value
};

// Owns its nodes, values and sub-graphs. Movable, not copyable; see clone().
class Graph {
 public:
  explicit Graph(std::string name = "graph");
  ~Graph();
  Graph(Graph&&) noexcept = delete;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  const std::string& name() const { return name_; }
  // In topological order: a node comes after the producers of its inputs, and of what its sub-graphs capture;
  // otherwise in order of insertion. Throws Error{InvalidModel} naming a node on a cycle. Valid until the
  // next change.
  const std::vector<Node*>& nodes() const;
  const std::vector<Value*>& inputs() const { return inputs_; }
  const std::vector<GraphOutput>& outputs() const { return outputs_; }
  std::vector<Value*> constants() const;  // in order of insertion
  std::vector<Value*> values() const;     // all of them
  // By name, in this graph alone; null if there is none.
  Value* find_value(const std::string& name) const;
  bool is_output(const Value* value) const;
  // For a sub-graph, the node it is an attribute of; else null.
  Node* parent() const { return parent_; }

  // Operator-set versions by domain, and free-form metadata.
  const std::map<std::string, int>& opsets() const { return opsets_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // A deep copy; constants share their bytes.
  std::unique_ptr<Graph> clone() const;

 private:
  friend class Rewriter;
  friend class ShapeInference;
  Value* new_value(std::string name);
  std::string unique_name(const std::string& wanted) const;
  void sort() const;

  std::string name_;
  std::vector<std::unique_ptr<Node>> owned_nodes_;
  std::vector<std::unique_ptr<Value>> owned_values_;
  std::map<std::string, Value*> by_name_;
  std::vector<Value*> inputs_;
  std::vector<GraphOutput> outputs_;
  std::map<std::string, int> opsets_;
  std::map<std::string, std::string> metadata_;
  Node* parent_ = nullptr;
  mutable std::vector<Node*> sorted_;
  mutable bool sorted_valid_ = false;
};

// Values of outer graphs that `graph` and its sub-graphs use.
std::vector<Value*> captured_values(const Graph& graph);

// The graph as text, one node a line, for people and tests.
std::string to_text(const Graph& graph);

template <class T>
const T* Node::attribute(const std::string& name) const {
  const auto found = attributes_.find(name);
  if (found == attributes_.end()) return nullptr;
  const T* value = std::get_if<T>(&found->second);
  if (value == nullptr) wrong_attribute_type(name);
  return value;
}

}  // namespace quern
