// quern bench --speculate and --exit: decoding a text by another way and plainly, in turns.
#pragma once

#include "cli/console.h"
#include "cli/exit_options.h"
#include "cli/exit_status.h"
#include "cli/loaded_model.h"

namespace quern::cli {

void declare_bench_speculation_options(OptionSet& options);
ExitStatus bench_speculation(const Arguments& arguments, const LoadedModel& model, Console& console);
// The model is prepared for the rule (prepare_exits).
ExitStatus bench_exits(const Arguments& arguments, const LoadedModel& model, const runtime::ExitRule& rule,
                       Console& console);

}  // namespace quern::cli
