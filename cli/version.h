#pragma once

namespace quern::cli {

// "0.1.0"
const char* version();

}  // namespace quern::cli
