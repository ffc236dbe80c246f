#include "cli/commands/commands.h"

#include <array>

namespace quern::cli {

std::span<const Command> commands() {
  static const std::array kCommands = {
      tokenize_command(),
  };
  return kCommands;
}

}  // namespace quern::cli
