// Command lines to be copied into a shell.
#pragma once

#include <string>
#include <vector>

namespace quern::cli {

// The words, quoted for a POSIX shell where they need it.
std::string shell_line(const std::vector<std::string>& words);

}  // namespace quern::cli
