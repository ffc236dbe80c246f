// What a kernel sees of the node it computes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "runtime/runtime_value.h"

namespace quern::runtime {

// The state of the sequences that a decoder's step computes rows for: caches, positions, wanted logits.
// Opaque here; only the kernels of ai.quern look into it.
class DecodeStep;

// Runs a sub-graph with the values around it in sight.
class SubgraphRunner {
 public:
  virtual ~SubgraphRunner() = default;
  // `inputs` in the order of graph.inputs(); the result in the order of graph.outputs().
  virtual std::vector<RuntimeValue> run(const Graph& graph, std::vector<RuntimeValue> inputs) = 0;
};

struct RunLimits {
  // Of one tensor that a kernel makes. A file of a hundred bytes can ask for terabytes. 0: half of the
  // machine's memory.
  int64_t max_tensor_bytes = 0;
  // Of one Loop.
  int64_t max_loop_iterations = 10'000'000;
};

class KernelContext {
 public:
  KernelContext(const Node& node, std::vector<RuntimeValue> inputs, const RunLimits& limits,
                SubgraphRunner* subgraphs = nullptr, DecodeStep* decode_step = nullptr);

  const Node& node() const { return node_; }
  int opset() const { return node_.opset(); }

  size_t input_count() const { return inputs_.size(); }
  size_t output_count() const { return outputs_.size(); }
  // Whether the input was given and holds something.
  bool has_input(size_t i) const { return i < inputs_.size() && inputs_[i].present(); }
  // Whether anybody asked for the output.
  bool wants_output(size_t i) const { return node_.output(i) != nullptr; }

  // The input as it came; nothing where it is omitted.
  const RuntimeValue& value(size_t i) const;
  // The input as a dense tensor; a quantized or packed constant is dequantized on first use. Throws
  // Error{InvalidModel} naming node and input where it is omitted or of another kind.
  const Tensor& input(size_t i);
  // The same, null where it is omitted.
  const Tensor* optional_input(size_t i) { return has_input(i) ? &input(i) : nullptr; }
  DType dtype(size_t i) const { return value(i).dtype(); }

  // Ignored where nobody asked for the output.
  void set_output(size_t i, RuntimeValue value);
  std::vector<RuntimeValue> take_outputs() { return std::move(outputs_); }

  // A zero-filled tensor. Throws Error{OutOfMemory} naming the node where it would exceed the limit.
  Tensor make(DType dtype, Shape shape) const;
  // The element count of a tensor to be, held to the same limit; for buffers.
  int64_t checked_count(DType dtype, const Shape& shape) const;
  const RunLimits& limits() const { return limits_; }

  // Throws Error{Internal} where the node runs outside a graph.
  std::vector<RuntimeValue> run_subgraph(const Graph& graph, std::vector<RuntimeValue> inputs);
  // Null outside a decoder.
  DecodeStep* decode_step() const { return decode_step_; }

  // "node 'x' (Conv): message": the inputs at hand break a rule of the operator.
  template <class... Args>
  [[noreturn]] void fail(const Args&... args) const {
    throw_error(ErrorCode::InvalidModel, describe(node_), ": ", args...);
  }
  // Well-formed, but not computed here.
  template <class... Args>
  [[noreturn]] void unsupported(const Args&... args) const {
    throw_error(ErrorCode::Unsupported, describe(node_), ": ", args...);
  }

 private:
  const Node& node_;
  std::vector<RuntimeValue> inputs_;
  std::vector<RuntimeValue> outputs_;
  RunLimits limits_;
  SubgraphRunner* subgraphs_;
  DecodeStep* decode_step_;
};

}  // namespace quern::runtime
