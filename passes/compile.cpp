#include "passes/compile.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <system_error>

#include "formats/file/checksum.h"
#include "formats/file/mapped_file.h"
#include "passes/canonicalize/pipeline.h"
#include "passes/weights/placeholders.h"

namespace quern::passes {
namespace {

// Reading the sources for their digests takes as long as converting, so it is done beside it, and given up
// where that fails.
class SourceDigests {
 public:
  explicit SourceDigests(const std::vector<std::filesystem::path>& files) {
    const auto describe_all = [this, files] {
      std::vector<artifact::SourceFile> sources;
      for (const std::filesystem::path& file : files) sources.push_back(describe(file));
      return sources;
    };
    try {
      result_ = std::async(std::launch::async, describe_all);
    } catch (const std::system_error&) {  // no thread is to be had
      result_ = std::async(std::launch::deferred, describe_all);
    }
  }
  ~SourceDigests() { stop_ = true; }
  SourceDigests(const SourceDigests&) = delete;
  SourceDigests& operator=(const SourceDigests&) = delete;

  std::vector<artifact::SourceFile> get() { return result_.get(); }

 private:
  artifact::SourceFile describe(const std::filesystem::path& path) const {
    constexpr size_t kPart = size_t{8} << 20;
    const auto file = MappedFile::open(path);
    Sha256 hash;
    for (size_t at = 0; at < file->bytes().size() && !stop_; at += kPart) {
      const auto part = file->bytes().subspan(at, std::min(kPart, file->bytes().size() - at));
      hash.update(part);
      file->drop_pages(part);
    }
    return {path.filename().string(), file->size(), to_hex(hash.finish())};
  }

  std::atomic<bool> stop_ = false;
  std::future<std::vector<artifact::SourceFile>> result_;  // last: its thread uses the others
};

}  // namespace

Recipe conversion_recipe(const nlohmann::json& weights, const nlohmann::json& calibration,
                         const std::vector<RecipeStep>& heads, const std::string& cache) {
  Recipe recipe{.name = "convert", .steps = canonicalization_steps()};
  recipe.steps.insert(recipe.steps.end(), heads.begin(), heads.end());
  recipe.steps.push_back({.pass = "tie-weights"});
  recipe.steps.push_back({.pass = "quantize-weights", .options = weights});
  recipe.steps.push_back({.pass = "balance-channels"});
  recipe.steps.push_back({.pass = "static-activations"});
  recipe.steps.push_back({.pass = "calibrate-weights", .options = calibration});
  recipe.steps.push_back({.pass = "pack-weights"});
  if (cache != "model") recipe.steps.push_back({.pass = "kv-cache", .options = {{"kv", cache}}});
  return recipe;
}

Recipe execution_recipe() {
  Recipe recipe{.name = "run", .steps = canonicalization_steps()};
  recipe.steps.push_back({.pass = "tie-weights"});
  recipe.steps.push_back({.pass = "materialize-weights"});
  return recipe;
}

PipelineReport prepare_for_execution(Graph& graph) {
  PassContext context;
  return run_recipe(execution_recipe(), graph, context);
}

std::vector<WeightResult> write_artifact(const Graph& graph, const Recipe& recipe, const ArtifactParts& parts,
                                         const std::filesystem::path& target,
                                         const WeightProgress& progress) {
  SourceDigests sources(parts.sources);
  const GraphToWrite to_write(graph);
  std::vector<WeightResult> results;
  size_t done = 0;
  artifact::Writer writer(target);
  writer.write_graph(to_write.graph(), [&](const Value& constant) -> Constant {
    const Value* expression = to_write.expression(&constant);
    if (expression == nullptr) return *constant.constant();
    if (progress) progress(constant.name(), done++, to_write.expressions());
    WeightResult result;
    Constant made = materialize(*expression, &result);
    if (!result.format.empty()) {
      result.name = constant.name();
      results.push_back(std::move(result));
    }
    return made;
  });
  for (const auto& [name, bytes] : parts.attachments) writer.add_attachment(name, bytes);
  writer.add_attachment(artifact::kRecipe, print_recipe(with_all_options(recipe)));
  for (const artifact::SourceFile& source : sources.get()) writer.add_source(source);
  writer.finish();
  return results;
}

}  // namespace quern::passes
