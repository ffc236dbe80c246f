#include "runtime/reference/register.h"

namespace quern::runtime::reference {

void register_all(KernelTable& table) {
  register_unary(table);
  register_binary(table);
  register_movement(table);
}

}  // namespace quern::runtime::reference
