#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "ir/error.h"
#include "tests/fuzz/fuzz.h"

namespace quern::fuzz {

void run_checked(std::span<const std::byte> input) {
  try {
    run(input);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Internal) return;
    std::fprintf(stderr, "an internal error: %s\n", error.what());
    std::abort();
  }
}

OwnedBytes own(std::span<const std::byte> input) {
  constexpr std::align_val_t kAlignment{64};
  auto* memory = static_cast<std::byte*>(::operator new(input.size(), kAlignment));
  if (!input.empty()) std::memcpy(memory, input.data(), input.size());
  std::shared_ptr<const void> owner(memory, [kAlignment](std::byte* p) { ::operator delete(p, kAlignment); });
  return {owner, {memory, input.size()}};
}

}  // namespace quern::fuzz
