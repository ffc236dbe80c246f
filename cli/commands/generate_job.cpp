#include "cli/commands/generate_job.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/context_shift.h"
#include "cli/speculation.h"

namespace quern::cli {

ExitStatus status_of(const runtime::GenerateOutput& output) {
  const bool cancelled = std::any_of(output.results.begin(), output.results.end(), [](const auto& result) {
    return result.finish == runtime::FinishReason::Cancelled;
  });
  return cancelled ? ExitStatus::Interrupted : ExitStatus::Ok;
}

void add_optional_json(nlohmann::ordered_json& object, const GenerateJob& job, runtime::Session& session,
                       const runtime::GenerateOutput& output) {
  if (output.speculation) object["speculation"] = speculation_json(*output.speculation);
  if (job.options.shift_keep)
    object["context_shift"] = shift_json(session, *job.options.shift_keep, output.timing.context_shifts);
  if (job.exits) object["exits"] = exit_json(*job.exit_statistics);
}

void note_optional(const GenerateJob& job, runtime::Session& session, const runtime::GenerateOutput& output) {
  if (output.speculation) job.console.note(speculation_text(*output.speculation));
  if (job.options.shift_keep)
    job.console.note(shift_text(session, *job.options.shift_keep, output.timing.context_shifts));
  if (job.exits) job.console.note(exit_text(*job.exit_statistics));
}

double throughput(const runtime::GenerateTiming& timing) {
  return timing.seconds > 0 ? static_cast<double>(timing.generated_tokens) / timing.seconds : 0;
}

}  // namespace quern::cli
