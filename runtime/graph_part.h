// A part of a graph, run as often as wanted.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/interpreter.h"

namespace quern::runtime {

// Computes some values of a graph from others, by the kernels that Interpreter takes. The graph must outlive
// the part and stay as it is. Thread-safe: runs may overlap.
class GraphPart {
 public:
  // What lies behind a value that is given is not looked at. Throws Error{InvalidArgument} naming graph
  // inputs that are needed but not given, Error{Unsupported} as Interpreter does.
  GraphPart(const Graph& graph, std::span<const Value* const> given, std::vector<const Value*> wanted);
  ~GraphPart();
  GraphPart(GraphPart&&) noexcept;
  GraphPart& operator=(GraphPart&&) noexcept;

  // The values wanted, in their order. `given` binds every value that the part was made with; others are
  // passed over.
  std::vector<RuntimeValue> run(const Bindings& given, const RunOptions& options = {}) const;
  // What is computed, in order.
  std::vector<const Node*> nodes() const;

 private:
  std::vector<const Value*> wanted_;
  std::unique_ptr<ExecutionPlan> plan_;
};

}  // namespace quern::runtime
