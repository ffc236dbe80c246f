#include "cli/commands/commands.h"

#include <array>

namespace quern::cli {

std::span<const Command> commands() {
  static const std::array kCommands = {
      export_command(), run_command(), inspect_command(), passes_command(), tokenize_command(),
  };
  return kCommands;
}

}  // namespace quern::cli
