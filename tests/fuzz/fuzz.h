// What a fuzz target is: one function of bytes. quern's own errors are a fine answer to nonsense, except
// those that say that quern has a bug; anything else that leaves run() is a finding.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace quern::fuzz {

// Defined by each target.
void run(std::span<const std::byte> input);

// Runs it as described above; aborts on a finding.
void run_checked(std::span<const std::byte> input);

// A copy that a parser can keep, at an address aligned to 64 bytes, and exactly as long, so that
// AddressSanitizer sees any read beyond it.
struct OwnedBytes {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
};
OwnedBytes own(std::span<const std::byte> input);

}  // namespace quern::fuzz
