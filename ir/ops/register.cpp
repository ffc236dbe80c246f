#include "ir/ops/register.h"

namespace quern {

void register_all_schemas(SchemaTable& table) {
  register_elementwise_schemas(table);
  register_movement_schemas(table);
  register_slicing_schemas(table);
  register_generator_schemas(table);
  register_reduction_schemas(table);
  register_matmul_schemas(table);
  register_quern_schemas(table);
}

}  // namespace quern
