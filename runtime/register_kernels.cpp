#include "runtime/kernel_table.h"
#include "runtime/plain/register.h"
#include "runtime/reference/register.h"

namespace quern::runtime {

void register_all_kernels(KernelTable& table) {
  plain::register_all(table);
  reference::register_all(table);
}

}  // namespace quern::runtime
