// Self-speculation as the commands offer it.
#pragma once

#include "cli/speculation.h"
#include "runtime/speculate/pacing.h"
#include "runtime/speculate/self_drafter.h"

namespace quern::cli {

// --draft-layers.
void declare_self_speculation_options(OptionSet& options);

// "0-2,5", counted from 0; "first:4"; "exit:4"; or a file that `quern tune-draft` wrote. Throws UsageError
// for what is none of these, Error for a file that can't be read.
runtime::SelfDraft parse_draft_layers(const std::string& text);
// As parse_draft_layers() reads it: "0-2,5" or "exit:4".
std::string to_text(const runtime::SelfDraft& draft);

// Where --speculate self is given, compiles the model's program anew, with the entries that it needs. To be
// called before sessions are made.
void prepare_self_speculation(const Arguments& arguments, LoadedModel& model);
StrategyFactory with_self(const Arguments& arguments, const runtime::PacingOptions& pacing);

}  // namespace quern::cli
