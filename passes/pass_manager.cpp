#include "passes/pass_manager.h"

#include <chrono>

#include "ir/verifier.h"

namespace quern::passes {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void verify_after(const Graph& graph, const std::string& pass) {
  try {
    verify(graph);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::OutOfMemory) throw;
    throw_error(ErrorCode::Internal, "pass '", pass, "' left a graph that breaks the rules: ", error.what());
  }
}

class Pipeline {
 public:
  Pipeline(Graph& graph, PassContext& context, const PipelineHooks& hooks, const PassRegistry& registry)
      : graph_(graph), context_(context), hooks_(hooks), registry_(registry) {}

  PipelineReport run(const Recipe& recipe) {
    const auto start = std::chrono::steady_clock::now();
    with_context("checking the graph before any pass", [&] { verify(graph_); });
    steps_ = recipe.steps.size();
    for (step_ = 0; step_ < steps_; ++step_) run_step(recipe.steps[step_], concat("steps[", step_, "]"), 0);
    report_.seconds = seconds_since(start);
    return std::move(report_);
  }

 private:
  int64_t run_step(const RecipeStep& step, const std::string& where, int round) {
    return step.is_group() ? run_group(step, where) : run_pass(step, round);
  }

  int64_t run_group(const RecipeStep& group, const std::string& where) {
    int64_t total = 0;
    for (int round = 0; round < group.max_rounds; ++round) {
      int64_t changes = 0;
      for (size_t i = 0; i < group.repeat.size(); ++i) {
        changes += run_step(group.repeat[i], concat(where, ".repeat[", i, "]"), round);
      }
      if (changes == 0) return total;
      total += changes;
    }
    report_.unfinished_groups.push_back(group.name.empty() ? where : group.name);
    return total;
  }

  int64_t run_pass(const RecipeStep& step, int round) {
    if (hooks_.before_pass) hooks_.before_pass(step.pass, step_, steps_);
    PassRun run{.pass = step.pass, .round = round};
    const auto start = std::chrono::steady_clock::now();
    with_context("running pass '" + step.pass + "'",
                 [&] { run.report = registry_.create(step.pass, step.options)->run(graph_, context_); });
    run.seconds = seconds_since(start);
    verify_after(graph_, step.pass);
    if (hooks_.after_pass) hooks_.after_pass(graph_, run);
    report_.runs.push_back(std::move(run));
    return report_.runs.back().report.changes;
  }

  Graph& graph_;
  PassContext& context_;
  const PipelineHooks& hooks_;
  const PassRegistry& registry_;
  PipelineReport report_;
  size_t step_ = 0;
  size_t steps_ = 0;
};

}  // namespace

int64_t PipelineReport::changes() const {
  int64_t total = 0;
  for (const PassRun& run : runs) total += run.report.changes;
  return total;
}

nlohmann::json PipelineReport::to_json() const {
  nlohmann::json result;
  result["seconds"] = seconds;
  result["passes"] = nlohmann::json::array();
  for (const PassRun& run : runs) {
    result["passes"].push_back({{"pass", run.pass},
                                {"round", run.round},
                                {"changes", run.report.changes},
                                {"seconds", run.seconds},
                                {"notes", run.report.notes}});
  }
  return result;
}

PipelineReport run_recipe(const Recipe& recipe, Graph& graph, PassContext& context,
                          const PipelineHooks& hooks, const PassRegistry& registry) {
  return Pipeline(graph, context, hooks, registry).run(recipe);
}

}  // namespace quern::passes
