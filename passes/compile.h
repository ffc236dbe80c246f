// From an imported graph to one that runs, and to an artifact.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/artifact/writer.h"
#include "ir/graph.h"
#include "passes/pass_manager.h"
#include "passes/recipe.h"
#include "passes/weights/materialize.h"

namespace quern::passes {

// What `quern convert` runs: canonicalization, heads that are added, one tensor for tied weights, the
// decision of what each weight becomes, and its layout. `weights`: options of the pass quantize-weights;
// `calibration`: of calibrate-weights; `heads`: steps such as insert-medusa-heads and insert-exit-heads;
// `cache`: how keys and values are kept, an option of kv-cache, or "model": as they are.
Recipe conversion_recipe(const nlohmann::json& weights,
                         const nlohmann::json& calibration = nlohmann::json::object(),
                         const std::vector<RecipeStep>& heads = {}, const std::string& cache = "model");

// What runs a model as it is: canonicalization and one tensor for tied weights; weights keep their numbers.
Recipe execution_recipe();

// Runs execution_recipe() and computes the weights in memory. Afterwards is_decoder() (passes/canonicalize)
// says whether a runtime::Program can be compiled from the graph. Throws as run_recipe() does.
PipelineReport prepare_for_execution(Graph& graph);

// What goes into an artifact beside the graph.
struct ArtifactParts {
  std::map<std::string, std::string> attachments;  // artifact::kTokenizerJson, ...
  std::vector<std::filesystem::path> sources;      // the files of the model; their digests are kept
};

// Called before each weight is computed and written.
using WeightProgress = std::function<void(const std::string& name, size_t done, size_t of)>;

// Writes `graph`, to which a recipe has been applied, with `recipe` beside it. Weights that are expressions
// still are computed one at a time, as they are written, so that memory is needed for the largest one, not
// for the model. What became of each is returned. The file appears whole or not at all; the same graph gives
// the same bytes. Throws as artifact::Writer and materialize() do.
std::vector<WeightResult> write_artifact(const Graph& graph, const Recipe& recipe, const ArtifactParts& parts,
                                         const std::filesystem::path& target,
                                         const WeightProgress& progress = {});

}  // namespace quern::passes
