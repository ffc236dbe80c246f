// Replaces the global allocation functions by ones that count. In a file of their own, so that nothing
// inlines them.
#include "tests/runtime/decoder/allocation_count.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

// g++ pairs an inlined operator new of the library with the free() below and warns of a mismatch that is not
// there.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

void* operator new(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(size == 0 ? 1 : size)) return p;
  throw std::bad_alloc();
}
// For std::stable_sort's buffer; what it frees must come from here, too.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(size == 0 ? 1 : size);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const auto a = static_cast<std::size_t>(alignment);
  if (void* p = std::aligned_alloc(a, (size + a - 1) / a * a)) return p;
  throw std::bad_alloc();
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const auto a = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(a, (size + a - 1) / a * a);
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}

namespace quern::test {

int64_t allocation_count() {
  return allocations.load();
}

namespace {

struct alignas(128) Wide {
  char bytes[128];
};

TEST(AllocationCount, CountsEveryKind) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer has allocations of arrays of its own";
#endif
  const int64_t before = allocation_count();
  const auto plain = std::make_unique<int>(1);
  const auto array = std::make_unique<int[]>(10);
  const auto wide = std::make_unique<Wide>();
  EXPECT_EQ(allocation_count() - before, 3);
}

}  // namespace
}  // namespace quern::test
