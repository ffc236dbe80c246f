// One registration function per family of operators; called once, from register_all_schemas.
#pragma once

#include "ir/schema.h"

namespace quern {

void register_all_schemas(SchemaTable& table);

void register_elementwise_schemas(SchemaTable& table);
void register_movement_schemas(SchemaTable& table);
void register_slicing_schemas(SchemaTable& table);
void register_generator_schemas(SchemaTable& table);
void register_reduction_schemas(SchemaTable& table);
void register_matmul_schemas(SchemaTable& table);
void register_normalization_schemas(SchemaTable& table);
void register_quantization_schemas(SchemaTable& table);
void register_convolution_schemas(SchemaTable& table);
void register_control_flow_schemas(SchemaTable& table);
void register_sequence_schemas(SchemaTable& table);
void register_recurrent_schemas(SchemaTable& table);
void register_attention_schemas(SchemaTable& table);
void register_image_schemas(SchemaTable& table);
void register_einsum_schemas(SchemaTable& table);
void register_signal_schemas(SchemaTable& table);
void register_loss_schemas(SchemaTable& table);
void register_text_schemas(SchemaTable& table);
void register_microsoft_schemas(SchemaTable& table);
void register_microsoft_attention_schemas(SchemaTable& table);
void register_microsoft_qlinear_schemas(SchemaTable& table);
void register_quern_schemas(SchemaTable& table);

}  // namespace quern
