// One registration function per family of operators; called once, from register_all.
#pragma once

#include <initializer_list>
#include <string_view>

#include "ir/schema.h"
#include "runtime/kernel_table.h"

namespace quern::runtime::reference {

void register_all(KernelTable& table);

void register_unary(KernelTable& table);
void register_binary(KernelTable& table);
void register_cast(KernelTable& table);
void register_movement(KernelTable& table);
void register_weights(KernelTable& table);
void register_slicing(KernelTable& table);
void register_generators(KernelTable& table);
void register_reduction(KernelTable& table);
void register_axis(KernelTable& table);
void register_matmul(KernelTable& table);
void register_normalization(KernelTable& table);
void register_quantization(KernelTable& table);
void register_convolution(KernelTable& table);
void register_pooling(KernelTable& table);
void register_control_flow(KernelTable& table);
void register_sequence(KernelTable& table);
void register_recurrent(KernelTable& table);
void register_attention(KernelTable& table);
void register_resize(KernelTable& table);
void register_grid(KernelTable& table);
void register_scatter(KernelTable& table);
void register_einsum(KernelTable& table);
void register_signal(KernelTable& table);
void register_loss(KernelTable& table);
void register_text(KernelTable& table);
void register_microsoft(KernelTable& table);
void register_microsoft_quantized(KernelTable& table);
void register_microsoft_attention(KernelTable& table);
void register_microsoft_multi_head(KernelTable& table);
void register_microsoft_moe(KernelTable& table);
void register_microsoft_qlinear(KernelTable& table);
void register_quern_convolution(KernelTable& table);

// Reference kernels for operators of ai.onnx.
inline void add_reference(KernelTable& table, std::initializer_list<std::string_view> ops, KernelFunction run,
                          int since = 1) {
  for (const std::string_view op : ops) {
    table.add(kOnnxDomain, op, {std::string(kReferenceImplementation), since, run, nullptr});
  }
}

// The same for com.microsoft.
inline void add_microsoft_reference(KernelTable& table, std::initializer_list<std::string_view> ops,
                                    KernelFunction run) {
  for (const std::string_view op : ops) {
    table.add(kMicrosoftDomain, op, {std::string(kReferenceImplementation), 1, run, nullptr});
  }
}

}  // namespace quern::runtime::reference
