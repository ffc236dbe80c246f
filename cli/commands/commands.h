// One function per sub-command, each in the file of its name; cli/commands/commands.cpp lists them.
#pragma once

#include "cli/command.h"

namespace quern::cli {

Command convert_command();
Command calibrate_command();
Command export_command();
Command synth_command();
Command generate_command();
Command run_command();
Command validate_command();
Command compare_command();
Command sensitivity_command();
Command bench_command();
Command cache_command();
Command datastore_command();
Command tune_draft_command();
Command calibrate_exits_command();
Command inspect_command();
Command passes_command();
Command tokenize_command();

}  // namespace quern::cli
