// What has no step of its own: the reference kernel, on the rows as a tensor.
#pragma once

#include <memory>
#include <vector>

#include "ir/graph.h"
#include "runtime/decoder/plan.h"
#include "runtime/kernel_table.h"

namespace quern::runtime {

// Slow: it allocates, and one thread does it all. Right for operators that a decoder has once, if at all.
class FallbackStep final : public Step {
 public:
  struct Input {
    Operand rows;  // undefined: a constant
    Shape features;
    RuntimeValue constant;
  };
  struct Output {
    Operand rows;  // undefined: nobody wants it
    Shape features;
  };
  // `graph` holds the node alone. Throws Error{Unsupported} where there is no kernel for it.
  FallbackStep(std::unique_ptr<Graph> graph, std::vector<Input> inputs);
  // The outputs' features, found by computing a few rows. Throws what the kernel throws, and
  // Error{Unsupported} where the results are not one for each row.
  std::vector<Shape> probe() const;
  void set_outputs(std::vector<Output> outputs);
  void run(const Pass& pass, int thread) const override;
  std::string detail() const override;

 private:
  std::vector<RuntimeValue> compute(int64_t rows, const Pass* pass) const;
  void store(const Pass& pass, const std::vector<RuntimeValue>& results) const;

  std::unique_ptr<Graph> graph_;
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
  const Kernel* kernel_;
};

// Why the operator does not compute each row by itself, as the node has it; empty if it does.
std::string not_row_wise(const Node& node);

}  // namespace quern::runtime
