// Kernels for graphs that are no decoders: encoders, convolutional networks, whatever the interpreter runs.
// oneDNN computes products, convolutions and pooling; the row kernels of runtime/cpu norms, softmax and
// element-wise arithmetic. All of them take f32 (products of codes besides) and leave other types and rare
// attributes to the reference.
//
// oneDNN chooses its blocking by shape and machine, so that results may differ in the last bits between batch
// sizes and machines: these kernels have no place in a decoder, nor where a model is compiled (evaluate()
// takes the reference).
#pragma once

#include "ir/schema.h"
#include "runtime/kernel_table.h"

namespace quern::runtime::plain {

inline constexpr std::string_view kImplementation = "cpu";

void register_all(KernelTable& table);

void register_products(KernelTable& table);
void register_convolution(KernelTable& table);
void register_quern_convolution(KernelTable& table);
void register_pooling(KernelTable& table);
void register_elementwise(KernelTable& table);
void register_rows(KernelTable& table);
void register_movement(KernelTable& table);
void register_linear(KernelTable& table);
void register_attention(KernelTable& table);
void register_fused_rows(KernelTable& table);

// Whether every input that is given is f32 and has elements.
bool takes_floats(const KernelContext& context);

// The node by its reference kernel, for what a kernel finds it cannot do.
void run_reference(KernelContext& context);

}  // namespace quern::runtime::plain
