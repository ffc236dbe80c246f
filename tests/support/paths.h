// Where tests find their data.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace quern::test {

// A file of the repository, by its path from the root.
std::filesystem::path source_path(const std::string& relative);

// A file of the build folder, by its path from there.
std::filesystem::path build_path(const std::string& relative);

// A file of the folder `shared` beside the checkout: larger models and texts that a clone may lack.
std::filesystem::path shared_path(const std::string& relative);

// Skips the running test where shared/<relative> is absent.
#define QUERN_NEEDS_SHARED(relative)                                           \
  if (!std::filesystem::exists(::quern::test::shared_path(relative))) {        \
    GTEST_SKIP() << "needs " << ::quern::test::shared_path(relative).string(); \
  }                                                                            \
  static_assert(true)

}  // namespace quern::test
