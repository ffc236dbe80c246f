// quern generate --prompts: many texts at once.
#pragma once

#include "cli/console.h"
#include "cli/exit_status.h"
#include "cli/loaded_model.h"
#include "runtime/generate/generate.h"

namespace quern::cli {

void declare_batch_options(OptionSet& options);
// `options`: for every text; parallel is set here.
ExitStatus generate_batch(const Arguments& arguments, Console& console, const LoadedModel& model,
                          runtime::Session& session, runtime::GenerateOptions options);

}  // namespace quern::cli
