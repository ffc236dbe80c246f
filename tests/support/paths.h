// Where tests find their data.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace quern::test {

// A file of the repository, by its path from the root.
inline std::filesystem::path source_path(const std::string& relative) {
  return std::filesystem::path(QUERN_SOURCE_DIR) / relative;
}

// A file of the folder `shared` beside the checkout: larger models and texts that a clone may lack.
inline std::filesystem::path shared_path(const std::string& relative) {
  return std::filesystem::path(QUERN_SOURCE_DIR).parent_path() / "shared" / relative;
}

// Skips the running test where shared/<relative> is absent.
#define QUERN_NEEDS_SHARED(relative)                                           \
  if (!std::filesystem::exists(::quern::test::shared_path(relative))) {        \
    GTEST_SKIP() << "needs " << ::quern::test::shared_path(relative).string(); \
  }                                                                            \
  static_assert(true)

}  // namespace quern::test
