// What commands read from files and the command line, shared by several of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"

namespace quern::cli {

// All of a file; "-": of standard input. Throws Error{Io}.
std::string read_input(const std::filesystem::path& path);

// That files can be made where --output and --report say, before long work is done for them: throws
// Error{Io}.
void check_outputs(const Arguments& arguments);

// The text given by --prompt or --prompt-file, if either is. Throws UsageError for both.
std::optional<std::string> prompt_text(const Arguments& arguments);

// "1,2,3" or "1 2 3". `origin` is for the message. Throws UsageError.
std::vector<int64_t> parse_ids(const std::string& text, const std::string& origin);
std::string join_ids(const std::vector<int64_t>& ids);

}  // namespace quern::cli
