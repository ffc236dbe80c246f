// What the kernels that call oneDNN share.
#pragma once

#include <dnnl.hpp>
#include <utility>

#include "ir/tensor.h"
#include "runtime/kernel_context.h"

namespace quern::runtime::plain {

// One for the process: the processor.
const dnnl::engine& engine();

// A view of the tensor's elements; oneDNN does not write through it where it is an argument that it reads.
dnnl::memory view(const dnnl::memory::desc& description, const void* data);

// Runs and waits.
void execute(const dnnl::primitive& primitive, const std::unordered_map<int, dnnl::memory>& arguments);

// The same elements in another layout; the memory itself where the layout is the same.
dnnl::memory reordered(const dnnl::memory& from, const dnnl::memory::desc& to);

// Translates oneDNN's exceptions: Error{OutOfMemory}, or Error{Internal} naming the node.
template <class Body>
void with_onednn(const KernelContext& context, Body&& body) {
  try {
    std::forward<Body>(body)();
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory) throw_error(ErrorCode::OutOfMemory, "no memory left");
    throw_error(ErrorCode::Internal, describe(context.node()), ": oneDNN refuses: ", error.what());
  }
}

}  // namespace quern::runtime::plain
