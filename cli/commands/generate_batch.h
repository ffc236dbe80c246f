// quern generate --prompts: many texts at once.
#pragma once

#include "cli/commands/generate_job.h"

namespace quern::cli {

// --prompts, --parallel, --instances.
void declare_batch_options(OptionSet& options);
// Throws UsageError for --instances without --prompts.
void check_batch_options(const Arguments& arguments);
ExitStatus generate_batch(GenerateJob& job);

}  // namespace quern::cli
