#include "cli/commands/commands.h"

#include <array>

#include "cli/commands/head_commands.h"

namespace quern::cli {

std::span<const Command> commands() {
  static const std::array kCommands = {
      convert_command(),     calibrate_command(),  export_command(),      synth_command(),
      train_heads_command(), generate_command(),   cache_command(),       datastore_command(),
      tune_medusa_command(), tune_draft_command(), run_command(),         calibrate_exits_command(),
      validate_command(),    compare_command(),    sensitivity_command(), bench_command(),
      inspect_command(),     passes_command(),     tokenize_command(),
  };
  return kCommands;
}

}  // namespace quern::cli
