// Files of a .tar.gz archive, in memory.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace quern::test {

// Path in the archive to content, regular files only. Throws std::runtime_error.
std::map<std::string, std::string> read_tar_gz(const std::filesystem::path& path);

}  // namespace quern::test
