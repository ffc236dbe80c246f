#include "cli/interrupt.h"

namespace quern::cli {
namespace {

std::atomic<bool> g_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may write it");

extern "C" void request_interrupt(int) {
  g_requested.store(true, std::memory_order_relaxed);
}

}  // namespace

InterruptRequest::InterruptRequest() {
  g_requested = false;
  struct sigaction action {};
  action.sa_handler = request_interrupt;
  // The default action comes back with the first signal, so that the second ends a process that hangs.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, &before_);
}

InterruptRequest::~InterruptRequest() {
  ::sigaction(SIGINT, &before_, nullptr);
}

const std::atomic<bool>& InterruptRequest::requested() const {
  return g_requested;
}

}  // namespace quern::cli
