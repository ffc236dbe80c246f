#include "runtime/reference/register.h"

#include "runtime/reference/experts.h"

namespace quern::runtime::reference {

void register_all(KernelTable& table) {
  register_unary(table);
  register_binary(table);
  register_cast(table);
  register_movement(table);
  register_weights(table);
  register_slicing(table);
  register_generators(table);
  register_reduction(table);
  register_axis(table);
  register_matmul(table);
  register_normalization(table);
  register_quantization(table);
  register_convolution(table);
  register_pooling(table);
  register_control_flow(table);
  register_sequence(table);
  register_recurrent(table);
  register_attention(table);
  register_resize(table);
  register_grid(table);
  register_scatter(table);
  register_einsum(table);
  register_signal(table);
  register_loss(table);
  register_text(table);
  register_microsoft(table);
  register_microsoft_quantized(table);
  register_microsoft_attention(table);
  register_microsoft_multi_head(table);
  register_microsoft_moe(table);
  register_experts(table);
  register_quern_convolution(table);
  register_microsoft_qlinear(table);
}

}  // namespace quern::runtime::reference
