// The one file of the tests that is compiled with absolute paths: all others come from a compiler cache in
// every checkout.
#include "tests/support/paths.h"

namespace quern::test {

std::filesystem::path source_path(const std::string& relative) {
  return std::filesystem::path(QUERN_SOURCE_DIR) / relative;
}

std::filesystem::path build_path(const std::string& relative) {
  return std::filesystem::path(QUERN_BINARY_DIR) / relative;
}

std::filesystem::path shared_path(const std::string& relative) {
  return std::filesystem::path(QUERN_SOURCE_DIR).parent_path() / "shared" / relative;
}

}  // namespace quern::test
