// The options that say what weights become, and the recipe that they stand for.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "cli/options.h"
#include "passes/recipe.h"

namespace quern::cli {

void declare_recipe_options(OptionSet& options);

// The one given by --recipe, else the one that the options build. Throws UsageError for options that
// contradict one another, Error as passes::parse_recipe does.
passes::Recipe recipe_of(const Arguments& arguments);

// What the options make of the pass quantize-weights. Throws UsageError as above.
nlohmann::json weight_options(const Arguments& arguments);

}  // namespace quern::cli
