#include "runtime/reference/register.h"

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
}

}  // namespace quern::runtime::reference
