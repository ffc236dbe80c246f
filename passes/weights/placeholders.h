// Constants that are not there yet, and the graph that is written with them.
#pragma once

#include <memory>
#include <unordered_map>

#include "ir/graph.h"

namespace quern::passes {

// A tensor that takes address space and no memory, and reads as zeros: to stand in a graph for a weight that
// is made when it is written. Throws Error{OutOfMemory}.
Tensor placeholder(DType dtype, const Shape& shape);

// A copy of a graph in which every stored expression (passes/weights/materialize.h) is a constant: the small
// ones computed, the others placeholders that know what they stand for. The original must outlive it.
class GraphToWrite {
 public:
  explicit GraphToWrite(const Graph& original);

  const Graph& graph() const { return *copy_; }
  // The expression of the original behind a constant of graph(); null where the constant is itself.
  const Value* expression(const Value* constant) const;
  size_t expressions() const { return expressions_.size(); }

 private:
  void replace_expressions(const Graph& original, Graph& copy);

  std::unique_ptr<Graph> copy_;
  std::unordered_map<const Value*, const Value*> expressions_;
};

}  // namespace quern::passes
