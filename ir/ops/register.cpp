#include "ir/ops/register.h"

namespace quern {

void register_all_schemas(SchemaTable& table) {
  register_elementwise_schemas(table);
  register_movement_schemas(table);
  register_slicing_schemas(table);
  register_generator_schemas(table);
  register_reduction_schemas(table);
  register_matmul_schemas(table);
  register_normalization_schemas(table);
  register_quantization_schemas(table);
  register_convolution_schemas(table);
  register_control_flow_schemas(table);
  register_sequence_schemas(table);
  register_recurrent_schemas(table);
  register_attention_schemas(table);
  register_image_schemas(table);
  register_einsum_schemas(table);
  register_signal_schemas(table);
  register_loss_schemas(table);
  register_text_schemas(table);
  register_microsoft_schemas(table);
  register_microsoft_attention_schemas(table);
  register_microsoft_qlinear_schemas(table);
  register_quern_schemas(table);
}

}  // namespace quern
