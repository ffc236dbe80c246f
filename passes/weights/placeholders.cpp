#include "passes/weights/placeholders.h"

#include <sys/mman.h>

#include <algorithm>

#include "ir/rewriter.h"
#include "ir/verifier.h"
#include "passes/weights/materialize.h"

namespace quern::passes {
namespace {

// Small expressions are worth less than the trouble: their numbers may matter to whoever reads the copy
// (shapes).
constexpr int64_t kSmallBytes = 4096;

bool is_small(const Value& expression) {
  const Shape shape = *as_constant(expression.shape());
  return byte_size(expression.dtype(), element_count(shape)) <= kSmallBytes;
}

}  // namespace

Tensor placeholder(DType dtype, const Shape& shape) {
  const int64_t bytes = byte_size(dtype, element_count(shape));
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  void* region = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED)
    throw_error(ErrorCode::OutOfMemory, "cannot reserve ", size, " bytes of address space");
  const std::shared_ptr<const void> owner(
      region, [size](const void* start) { ::munmap(const_cast<void*>(start), size); });
  return Tensor::view(dtype, shape, owner, static_cast<const std::byte*>(region), bytes);
}

GraphToWrite::GraphToWrite(const Graph& original) : copy_(original.clone()) {
  replace_expressions(original, *copy_);
  remove_dead_nodes(*copy_);
  verify(*copy_);
}

// A copy has its nodes in the order of the original's, and so their sub-graphs.
void GraphToWrite::replace_expressions(const Graph& original, Graph& copy) {
  for (size_t i = 0; i < original.nodes().size(); ++i) {
    const std::vector<Graph*> originals = original.nodes()[i]->subgraphs();
    const std::vector<Graph*> copies = copy.nodes()[i]->subgraphs();
    for (size_t j = 0; j < originals.size(); ++j) replace_expressions(*originals[j], *copies.at(j));
  }
  for (const StoredExpression& stored : stored_expressions(original)) {
    const Value& value = *stored.value;
    Value* expression = copy.find_value(value.name());
    if (expression == nullptr)
      throw_error(ErrorCode::Internal, "a copy of a graph lacks '", value.name(), "'");
    const bool small = is_small(value);
    Constant constant =
        small ? materialize(value) : Constant(placeholder(value.dtype(), *as_constant(value.shape())));
    const Value* stand_in = replace_by_constant(copy, expression, std::move(constant), stored.name);
    if (!small) expressions_.emplace(stand_in, stored.value);
  }
}

const Value* GraphToWrite::expression(const Value* constant) const {
  const auto found = expressions_.find(constant);
  return found == expressions_.end() ? nullptr : found->second;
}

}  // namespace quern::passes
