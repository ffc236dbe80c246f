#include "runtime/cpu/wait_point.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#endif

namespace quern::cpu {

#if defined(__linux__)
// The system call itself: libstdc++ 12's std::atomic::wait yields before it sleeps.
void WaitPoint::sleep(uint32_t ticket) {
  static_assert(sizeof(tickets_) == sizeof(uint32_t));
  syscall(SYS_futex, &tickets_, FUTEX_WAIT_PRIVATE, ticket, nullptr, nullptr, 0);
}

void WaitPoint::wake_all() {
  syscall(SYS_futex, &tickets_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}
#else
void WaitPoint::sleep(uint32_t ticket) {
  tickets_.wait(ticket);
}

void WaitPoint::wake_all() {
  tickets_.notify_all();
}
#endif

}  // namespace quern::cpu
