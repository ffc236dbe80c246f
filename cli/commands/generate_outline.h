// quern generate --outline: an answer in points that are written side by side.
#pragma once

#include "cli/commands/generate_job.h"

namespace quern::cli {

// Points that are reckoned with where memory is shared out.
inline constexpr int64_t kOutlineTexts = 10;

// --outline and --outline-file.
void declare_outline_options(OptionSet& options);
bool wants_outline(const Arguments& arguments);
ExitStatus generate_outline(GenerateJob& job);

}  // namespace quern::cli
