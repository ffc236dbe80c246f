#include "runtime/kernel_context.h"

#include <unistd.h>

#include "runtime/limit_exceeded.h"

namespace quern::runtime {
namespace {

int64_t half_of_memory() {
  static const int64_t bytes = [] {
    const int64_t pages = sysconf(_SC_PHYS_PAGES);
    const int64_t page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? pages / 2 * page : int64_t{1} << 32;
  }();
  return bytes;
}

}  // namespace

KernelContext::KernelContext(const Node& node, std::vector<RuntimeValue> inputs, const RunLimits& limits,
                             SubgraphRunner* subgraphs, DecodeStep* decode_step)
    : node_(node),
      inputs_(std::move(inputs)),
      outputs_(node.outputs().size()),
      limits_(limits),
      subgraphs_(subgraphs),
      decode_step_(decode_step) {
  if (limits_.max_tensor_bytes <= 0) limits_.max_tensor_bytes = half_of_memory();
}

const RuntimeValue& KernelContext::value(size_t i) const {
  static const RuntimeValue kNothing;
  return i < inputs_.size() ? inputs_[i] : kNothing;
}

const Tensor& KernelContext::input(size_t i) {
  if (!has_input(i)) fail("input ", i, " is missing");
  if (inputs_[i].is_sequence()) fail("input ", i, " is a sequence, expected a tensor");
  if (inputs_[i].tensor() == nullptr) inputs_[i] = inputs_[i].dense();
  return *inputs_[i].tensor();
}

void KernelContext::set_output(size_t i, RuntimeValue value) {
  if (wants_output(i)) outputs_[i] = std::move(value);
}

int64_t KernelContext::checked_count(DType dtype, const Shape& shape) const {
  int64_t count = 0;
  int64_t bytes = 0;
  try {
    count = element_count(shape);
    bytes = dtype == DType::String ? count * static_cast<int64_t>(sizeof(std::string))
                                   : quern::byte_size(dtype, count);
  } catch (const Error&) {
    bytes = -1;
  }
  for (const int64_t dim : shape) {
    if (dim < 0) fail("an output would have the shape ", to_string(shape));
  }
  if (bytes < 0 || bytes > limits_.max_tensor_bytes) {
    throw LimitExceeded(concat(describe(node_), ": an output of shape ", to_string(shape), " and type ",
                               to_string(dtype), " exceeds the limit of ", limits_.max_tensor_bytes,
                               " bytes for one tensor"));
  }
  return count;
}

Tensor KernelContext::make(DType dtype, Shape shape) const {
  checked_count(dtype, shape);
  return Tensor::zeros(dtype, std::move(shape));
}

std::vector<RuntimeValue> KernelContext::run_subgraph(const Graph& graph, std::vector<RuntimeValue> inputs) {
  if (subgraphs_ == nullptr) throw_error(ErrorCode::Internal, describe(node_), " runs outside a graph");
  return subgraphs_->run(graph, std::move(inputs));
}

}  // namespace quern::runtime
