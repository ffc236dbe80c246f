// Prompts that several calls of generate(), on several threads, share.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>

namespace quern::runtime {

// Hands out the numbers of prompts in their order, each once. Any thread may call anything.
class PromptQueue {
 public:
  explicit PromptQueue(size_t count) : count_(count) {}

  // Nothing where all are handed out, or the queue was closed.
  std::optional<size_t> take() {
    if (closed()) return {};
    const size_t next = next_.fetch_add(1, std::memory_order_relaxed);
    return next < count_ ? std::optional(next) : std::nullopt;
  }
  // Whoever decodes prompts of this queue ends as if cancelled.
  void close() { closed_.store(true, std::memory_order_relaxed); }
  bool closed() const { return closed_.load(std::memory_order_relaxed); }

 private:
  const size_t count_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> closed_{false};
};

}  // namespace quern::runtime
