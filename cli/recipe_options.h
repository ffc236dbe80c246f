// The options that say what weights become, and the recipe that they stand for.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "cli/options.h"
#include "passes/recipe.h"

namespace quern::cli {

void declare_recipe_options(OptionSet& options);

// The one given by --recipe, else the one that the options build. Throws UsageError for options that
// contradict one another, Error as passes::parse_recipe does.
passes::Recipe recipe_of(const Arguments& arguments);

// What the options make of the pass quantize-weights. Throws UsageError as above.
nlohmann::json weight_options(const Arguments& arguments);

// The passes that add heads, and the files that they read.
std::vector<passes::RecipeStep> head_steps(const Arguments& arguments);
std::vector<std::filesystem::path> head_files(const Arguments& arguments);

}  // namespace quern::cli
