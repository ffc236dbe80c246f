// Commands that train and tune heads on a model.
#pragma once

#include "cli/command.h"

namespace quern::cli {

Command tune_medusa_command();
Command train_heads_command();

}  // namespace quern::cli
