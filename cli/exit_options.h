// Early exits as the commands offer them.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/loaded_model.h"
#include "cli/speculation.h"
#include "passes/recipe.h"
#include "runtime/layers/early_exit.h"

namespace quern::cli {

// --exit and what belongs to it.
void declare_exit_options(OptionSet& options);
// What --exit asks for; nothing where it is not given. Throws UsageError, or Error for files.
std::optional<runtime::ExitRule> exit_rule(const Arguments& arguments);
// "margin:0.8", or "fixed:4".
std::string to_text(const runtime::ExitRule& rule);

// Compiles the model's program anew, with the entries that the rule needs. To be called before sessions are
// made.
void prepare_exits(const runtime::ExitRule& rule, LoadedModel& model);
StrategyFactory with_exits(const runtime::ExitRule& rule, const LoadedModel& model,
                           std::shared_ptr<runtime::ExitStatistics> statistics);

// `unit`: what leaves, "tokens", or of encoders "sequences"; a key.
nlohmann::ordered_json exit_json(const runtime::ExitStatistics& statistics,
                                 const std::string& unit = "tokens");
std::string exit_text(const runtime::ExitStatistics& statistics);

// --exit-heads of `quern convert`: the steps that insert them, and the files that they are read from.
void declare_exit_head_options(OptionSet& options);
std::vector<passes::RecipeStep> exit_head_steps(const Arguments& arguments);
std::vector<std::filesystem::path> exit_head_files(const Arguments& arguments);

}  // namespace quern::cli
