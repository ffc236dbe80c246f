// Encoders with early exits as the commands run them.
#pragma once

#include <memory>

#include "cli/loaded_model.h"
#include "runtime/layers/encoder_exit.h"
#include "runtime/layers/hash_exit.h"

namespace quern::cli {

// Of a plain graph that has exit heads. Throws Error, naming the file.
std::unique_ptr<runtime::EarlyExitEncoder> make_encoder_exits(const runtime::ExitRule& rule,
                                                              const ModelFile& model);

// Whether --exit asks for tokens that leave by a table: hash:FILE.
bool exits_by_hash(const Arguments& arguments);
// Of that file: token ids or text whose tokens are counted, or a .json with "layers_of_tokens", a list by id.
// Throws UsageError, or Error.
std::unique_ptr<runtime::HashExitEncoder> make_hash_exits(const Arguments& arguments,
                                                          const LoadedModel& model);

}  // namespace quern::cli
