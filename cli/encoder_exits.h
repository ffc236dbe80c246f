// Encoders with early exits as the commands run them.
#pragma once

#include <memory>

#include "cli/model_file.h"
#include "runtime/layers/encoder_exit.h"

namespace quern::cli {

// Of a plain graph that has exit heads. Throws Error, naming the file.
std::unique_ptr<runtime::EarlyExitEncoder> make_encoder_exits(const runtime::ExitRule& rule,
                                                              const ModelFile& model);

}  // namespace quern::cli
