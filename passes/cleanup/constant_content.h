// Equality of constants by content, reading as little of large ones as possible.
#pragma once

#include <cstdint>
#include <string>

#include "ir/graph.h"

namespace quern::passes {

// Dtype, shape and some of the bytes, spread over the whole: equal constants have equal fingerprints.
std::string fingerprint(const Constant& constant);

// Same kind, types, schemes and bytes.
bool same_content(const Constant& a, const Constant& b);

}  // namespace quern::passes
