// quern bench --speculate: what speculation gains.
#pragma once

#include "cli/console.h"
#include "cli/exit_status.h"
#include "cli/loaded_model.h"

namespace quern::cli {

void declare_bench_speculation_options(OptionSet& options);
ExitStatus bench_speculation(const Arguments& arguments, const LoadedModel& model, Console& console);

}  // namespace quern::cli
