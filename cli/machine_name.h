// What a figure was measured on.
#pragma once

#include <string>

namespace quern::cli {

// "AMD EPYC 7763, avx2, 2 threads"; without the threads where they are 0.
std::string machine_name(int threads);

}  // namespace quern::cli
