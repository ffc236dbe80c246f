// What the forms of `quern generate` have in common: one text, many, or the points of an outline.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "cli/console.h"
#include "cli/exit_options.h"
#include "cli/exit_status.h"
#include "cli/loaded_model.h"
#include "cli/sampling.h"
#include "runtime/generate/generate.h"

namespace quern::cli {

struct GenerateJob {
  const Arguments& arguments;
  Console& console;
  LoadedModel model;
  Sampling sampling;
  runtime::SessionOptions session;
  // For every text: all but `parallel` and what belongs to a session. Refers to this job, which stays where
  // it is.
  runtime::GenerateOptions options;
  std::optional<runtime::ExitRule> exits;
  std::shared_ptr<runtime::ExitStatistics> exit_statistics;  // added to by options.strategy
};

// Whether the caller interrupted one of the texts.
ExitStatus status_of(const runtime::GenerateOutput& output);
// Keys that are there where their options are: speculation, context_shift, exits.
void add_optional_json(nlohmann::ordered_json& object, const GenerateJob& job, runtime::Session& session,
                       const runtime::GenerateOutput& output);
// The same as lines on standard error.
void note_optional(const GenerateJob& job, runtime::Session& session, const runtime::GenerateOutput& output);

// 'generated tokens by all of the time'.
double throughput(const runtime::GenerateTiming& timing);

}  // namespace quern::cli
