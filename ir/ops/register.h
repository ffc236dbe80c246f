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
void register_quern_schemas(SchemaTable& table);

}  // namespace quern
