#include "runtime/plain/register.h"

namespace quern::runtime::plain {

bool takes_floats(const KernelContext& context) {
  for (size_t i = 0; i < context.input_count(); ++i) {
    if (!context.has_input(i)) continue;
    const RuntimeValue& value = context.value(i);
    if (value.is_sequence() || value.dtype() != DType::F32) return false;
    if (value.tensor() != nullptr && value.tensor()->size() == 0) return false;
  }
  return context.has_input(0);
}

void run_reference(KernelContext& context) {
  const std::vector<const Kernel*> kernels = KernelTable::instance().find(context.node());
  select_kernel(kernels, kReferenceImplementation, context).run(context);
}

void register_all(KernelTable& table) {
  register_products(table);
  register_convolution(table);
  register_quern_convolution(table);
  register_pooling(table);
  register_elementwise(table);
  register_rows(table);
  register_movement(table);
  register_linear(table);
  register_attention(table);
  register_fused_rows(table);
}

}  // namespace quern::runtime::plain
