// Evaluates graphs node by node, by the kernels of the kernel table.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "runtime/kernel_context.h"
#include "runtime/runtime_value.h"

namespace quern::runtime {

struct RunOptions {
  // Kernels of this implementation where there are any ("reference": the oracle). Empty: what the environment
  // variable QUERN_FORCE_KERNEL names, else the first that accepts a node.
  std::string implementation;
  RunLimits limits;
  DecodeStep* decode_step = nullptr;
  // Called with each node before it runs, and the implementation that will compute it.
  std::function<void(const Node&, std::string_view implementation)> on_kernel;
  // Called with each value as it is computed, those of sub-graphs too.
  std::function<void(const Value&, const RuntimeValue&)> on_value;
};

using NamedValues = std::map<std::string, RuntimeValue>;

class ExecutionPlan;

// Runs one graph, as often as wanted. The graph must outlive the interpreter and stay as it is.
// Thread-safe: runs may overlap.
class Interpreter {
 public:
  // Throws Error{Unsupported} naming every node, of sub-graphs too, that has no kernel.
  explicit Interpreter(const Graph& graph);
  ~Interpreter();

  // Inputs by name to outputs by name. Computes only what the outputs need, and drops each value after its
  // last use. Throws Error{BadData} naming an input that is missing, unknown, or of another dtype, rank or
  // constant dimension than the graph states; whatever the kernels throw, with the node as context.
  NamedValues run(const NamedValues& inputs, const RunOptions& options = {}) const;

 private:
  const Graph& graph_;
  std::unique_ptr<ExecutionPlan> plan_;
};

using Bindings = std::map<const Value*, RuntimeValue>;

// Partial evaluation by the reference kernels (other implementations where `options` names one): the values
// `wanted`, in that order, from constants and `bindings` of any values; what lies behind a bound value is not
// looked at. `wanted` may lie in a sub-graph and need values of the graphs around it. Throws
// Error{InvalidArgument} naming the graph inputs that are needed but not bound, Error{Unsupported} as run
// does.
std::vector<RuntimeValue> evaluate(std::span<const Value* const> wanted, const Bindings& bindings = {},
                                   const RunOptions& options = {});

// The graph inputs that evaluate() would miss; empty: everything is there. Kernels are not looked up.
std::vector<const Value*> missing_inputs(std::span<const Value* const> wanted, const Bindings& bindings = {});

// Throws Error{Unsupported} with all the nodes, operators and versions that have no kernel, and what to do.
void check_supported(const Graph& graph);

}  // namespace quern::runtime
