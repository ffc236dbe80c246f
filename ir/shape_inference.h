// Types, symbolic shapes and symbolic integer values of everything in a graph.
#pragma once

#include <optional>
#include <vector>

#include "ir/graph.h"

namespace quern {

inline constexpr size_t kMaxTrackedElements = 64;

// The elements of a constant integer tensor of rank 0 or 1 and at most kMaxTrackedElements elements; nothing
// for others.
std::optional<std::vector<Dim>> constant_elements(const Value& value);

// What an operator's infer function sees of one node. It sets what it knows of the outputs and leaves the
// rest; it throws Error{InvalidModel}, through fail(), only for inputs that no run could accept.
class InferContext {
 public:
  explicit InferContext(const Node& node);

  const Node& node() const { return node_; }
  size_t input_count() const { return node_.inputs().size(); }
  bool has_input(size_t i) const { return node_.input(i) != nullptr; }
  // Undefined where the input is omitted.
  const ValueType& input_type(size_t i) const;
  DType dtype(size_t i) const { return input_type(i).dtype; }
  const std::optional<SymShape>& shape(size_t i) const { return input_type(i).shape; }
  // The input's data, if it is a plain constant; else null.
  const Tensor* tensor(size_t i) const { return node_.input(i) ? node_.input(i)->tensor() : nullptr; }
  // Symbolic elements of a small integer input; nothing where they are not known.
  std::optional<std::vector<Dim>> elements(size_t i) const;
  // The same where all are constant integers.
  std::optional<std::vector<int64_t>> constant_ints(size_t i) const;

  void set_output(size_t i, DType dtype, std::optional<SymShape> shape);
  void set_output(size_t i, ValueType type);
  // Ignored for more elements than are tracked.
  void set_elements(size_t i, std::vector<Dim> elements);
  [[noreturn]] void fail(const std::string& message) const;  // "node 'x' (MatMul): message"

  const std::vector<ValueType>& output_types() const { return types_; }
  const std::vector<std::optional<std::vector<Dim>>>& output_elements() const { return elements_; }

 private:
  const Node& node_;
  std::vector<ValueType> types_;
  std::vector<std::optional<std::vector<Dim>>> elements_;
};

// Broadcast of symbolic shapes: equal dimensions, or 1, or a constant other than 1 against anything unknown
// (then the constant); two different unknown dimensions give a fresh one. Nothing where two constants clash.
std::optional<SymShape> broadcast(const SymShape& a, const SymShape& b);

// Where a shape was stated (by the file) and another inferred, the better known dimension of each wins.
// Throws Error{InvalidModel} naming the value where dtypes, ranks or constants contradict one another.
class ShapeInference {
 public:
  // Over the whole graph in order, sub-graphs included. Keeps stated types of graph inputs.
  static void run(Graph& graph);
  // The outputs of one node; leaves types alone that are known already.
  static void infer_missing(Node& node);

 private:
  static void infer(Node& node, bool strict);
};

inline void infer_shapes(Graph& graph) {
  ShapeInference::run(graph);
}

}  // namespace quern
