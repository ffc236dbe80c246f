#include "runtime/kernel_table.h"
#include "runtime/reference/register.h"

namespace quern::runtime {

void register_all_kernels(KernelTable& table) {
  reference::register_all(table);
}

}  // namespace quern::runtime
