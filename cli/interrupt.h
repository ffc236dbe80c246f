// Ctrl-C as a request, for commands that have something to say when they are stopped.
#pragma once

#include <signal.h>

#include <atomic>

namespace quern::cli {

// While it lives, SIGINT sets requested() instead of ending the process; a second one ends it as usual. One
// at a time.
class InterruptRequest {
 public:
  InterruptRequest();
  ~InterruptRequest();
  InterruptRequest(const InterruptRequest&) = delete;
  InterruptRequest& operator=(const InterruptRequest&) = delete;

  const std::atomic<bool>& requested() const;

 private:
  struct sigaction before_ {};
};

}  // namespace quern::cli
