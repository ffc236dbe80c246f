// quern bench --instances: decoders side by side against one that decodes as many texts together.
#pragma once

#include "cli/console.h"
#include "cli/exit_status.h"
#include "cli/loaded_model.h"

namespace quern::cli {

void declare_bench_instances_options(OptionSet& options);
ExitStatus bench_instances(const Arguments& arguments, const LoadedModel& model, Console& console);

}  // namespace quern::cli
