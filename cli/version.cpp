#include "cli/version.h"

namespace quern::cli {

const char* version() {
  return QUERN_VERSION;
}

}  // namespace quern::cli
