// Runs a recipe over a graph.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "passes/pass.h"
#include "passes/recipe.h"
#include "passes/registry.h"

namespace quern::passes {

// One run of one pass.
struct PassRun {
  std::string pass;
  int round = 0;  // within its fixed-point group, from 0
  double seconds = 0;
  PassReport report;
};

struct PipelineReport {
  std::vector<PassRun> runs;  // in order
  // Groups that were still changing when their rounds ran out, by name (or "steps[2]").
  std::vector<std::string> unfinished_groups;
  double seconds = 0;

  int64_t changes() const;
  // For --json: {"passes": [{"pass", "round", "changes", "seconds", "notes"}], "seconds"}
  nlohmann::json to_json() const;
};

struct PipelineHooks {
  // Before and after every pass; the latter once the graph is verified. For dumps and progress.
  std::function<void(const std::string& pass, size_t step, size_t steps)> before_pass;
  std::function<void(const Graph& graph, const PassRun& run)> after_pass;
};

// Runs the steps in order, verifies the graph first and after every pass. An Error that leaves it names the
// pass at fault ("while running pass 'x'"); a pass that leaves a broken graph gives Error{Internal}, naming
// the pass and what the verifier found.
PipelineReport run_recipe(const Recipe& recipe, Graph& graph, PassContext& context,
                          const PipelineHooks& hooks = {},
                          const PassRegistry& registry = PassRegistry::instance());

}  // namespace quern::passes
