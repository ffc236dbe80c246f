// The entry point that libFuzzer calls.
#include <cstdint>

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quern::fuzz::run_checked({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
