// Texts beyond the context as the commands offer them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "cli/options.h"
#include "runtime/decoder/session.h"

namespace quern::cli {

// --context-shift and --keep.
void declare_context_shift_options(OptionSet& options);
// GenerateOptions::shift_keep. Throws UsageError for --keep alone, and beside what would no longer be exact.
std::optional<int64_t> shift_keep(const Arguments& arguments);

// Keys: keep, shifts, dropped_tokens (each time), way, reason (why it is not move; null).
nlohmann::ordered_json shift_json(runtime::Session& session, int64_t keep, int64_t shifts);
std::string shift_text(runtime::Session& session, int64_t keep, int64_t shifts);

}  // namespace quern::cli
