// The order in which the nodes of a graph run, and when their values can go.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "runtime/interpreter.h"
#include "runtime/kernel_table.h"
#include "runtime/plain/graph_threads.h"

namespace quern::runtime {

class ExecutionPlan {
 public:
  struct Step {
    const Node* node;
    std::vector<const Kernel*> kernels;   // in order of preference
    std::vector<const Value*> last_uses;  // values that nothing needs after this step
  };

  // What `wanted` needs beyond `bindings`, with plans for the sub-graphs of those nodes. Values of graphs
  // other than `scope` are taken as given; null: none are.
  ExecutionPlan(std::span<const Value* const> wanted, const Bindings& bindings, const Graph* scope);

  const std::vector<Step>& steps() const { return steps_; }
  // Graph inputs that are needed but not bound.
  const std::vector<const Value*>& missing() const { return missing_; }
  const ExecutionPlan& subgraph(const Graph* graph) const { return *subgraphs_.at(graph); }
  // What `node` reads in place of a quantized or packed constant: its floats, where the operator does not
  // take it as it is, and where it does, a layout that kernels read. Null: the constant itself.
  const RuntimeValue* prepared(const Node& node, const Value* input) const;
  // Nodes without a kernel, of sub-graphs too.
  std::vector<const Node*> unsupported() const;

  // Of the runs of this plan.
  plain::GraphThreads& threads() const { return threads_; }

 private:
  void order(std::span<const Value* const> wanted, const Bindings& bindings, const Graph* scope);
  void find_last_uses(std::span<const Value* const> wanted, const Graph* scope);

  using Prepared = std::map<const Value*, RuntimeValue>;

  void prepare(const Node& node);

  std::vector<Step> steps_;
  std::vector<const Value*> missing_;
  Prepared dense_;    // for operators that take floats alone
  Prepared widened_;  // for those of ai.quern
  std::map<const Graph*, std::unique_ptr<ExecutionPlan>> subgraphs_;
  mutable plain::GraphThreads threads_;
};

// Throws Error{Unsupported} that names each operator with domain, version, nodes and what to do; nothing if
// empty.
void throw_unsupported(const std::vector<const Node*>& nodes);

}  // namespace quern::runtime
