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

// Reference kernels for operators of ai.onnx.
inline void add_reference(KernelTable& table, std::initializer_list<std::string_view> ops, KernelFunction run,
                          int since = 1) {
  for (const std::string_view op : ops) {
    table.add(kOnnxDomain, op, {std::string(kReferenceImplementation), since, run, nullptr});
  }
}

}  // namespace quern::runtime::reference
