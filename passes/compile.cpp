#include "passes/compile.h"

#include "ir/rewriter.h"
#include "passes/canonicalize/pipeline.h"

namespace quern::passes {
namespace {

// A constant of the type of `value` without bytes of its own; the writer's filter puts the real one in its
// place before anybody looks at them.
Constant placeholder(const Value& value) {
  const std::optional<Shape> shape = as_constant(value.shape());
  if (!shape)
    throw_error(ErrorCode::Internal, "the shape of the weight '", value.name(), "' is not constant");
  return Tensor::view(value.dtype(), *shape, nullptr, nullptr,
                      byte_size(value.dtype(), element_count(*shape)));
}

}  // namespace

Recipe conversion_recipe(const nlohmann::json& weights) {
  Recipe recipe{.name = "convert", .steps = canonicalization_steps()};
  recipe.steps.push_back({.pass = "tie-weights"});
  recipe.steps.push_back({.pass = "quantize-weights", .options = weights});
  recipe.steps.push_back({.pass = "pack-weights"});
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
  // `graph` keeps the expressions that `lean`, which is written, has placeholders for.
  const std::unique_ptr<Graph> lean = graph.clone();
  const std::vector<StoredExpression> expressions = stored_expressions(graph);
  std::map<const Value*, const Value*> expression_of;
  for (const StoredExpression& expression : expressions) {
    Value* copy = lean->find_value(expression.value->name());
    const Value* constant = replace_by_constant(*lean, copy, placeholder(*copy), expression.name);
    expression_of[constant] = expression.value;
  }
  remove_dead_nodes(*lean);
  std::vector<WeightResult> results;
  size_t done = 0;
  artifact::Writer writer(target);
  writer.write_graph(*lean, [&](const Value& constant) -> Constant {
    const auto found = expression_of.find(&constant);
    if (found == expression_of.end()) return *constant.constant();
    if (progress) progress(constant.name(), done++, expressions.size());
    WeightResult result;
    Constant made = materialize(*found->second, &result);
    if (!result.format.empty()) results.push_back(std::move(result));
    return made;
  });
  for (const auto& [name, bytes] : parts.attachments) writer.add_attachment(name, bytes);
  writer.add_attachment(artifact::kRecipe, print_recipe(with_all_options(recipe)));
  for (const std::filesystem::path& source : parts.sources)
    writer.add_source(artifact::describe_source(source));
  writer.finish();
  return results;
}

}  // namespace quern::passes
