// How often the program has asked for memory.
#pragma once

#include <cstdint>

namespace quern::test {

int64_t allocation_count();

}  // namespace quern::test
