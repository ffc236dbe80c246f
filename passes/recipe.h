// A pipeline as data: which passes run, in which order, with which options. See docs/recipe.md.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace quern::passes {

// One pass, or a group of steps that is repeated until a round changes nothing.
struct RecipeStep {
  std::string pass;                                   // empty for a group
  nlohmann::json options = nlohmann::json::object();  // only what differs from the defaults need be there

  std::vector<RecipeStep> repeat = {};  // of a group; never empty there
  int64_t max_rounds = 10;              // of a group
  std::string name = {};                // of a group, for reports

  bool is_group() const { return pass.empty(); }
  bool operator==(const RecipeStep&) const = default;
};

struct Recipe {
  // The version of the format that this build writes; it reads this one and all before it.
  static constexpr int kVersion = 1;

  std::string name;
  std::vector<RecipeStep> steps;

  bool operator==(const Recipe&) const = default;
};

// Checks shape, pass names and options against the registry. Throws Error{InvalidArgument} saying where
// ("steps[2].repeat[0]: ..."), and Error{Unsupported} for a recipe of a newer version.
Recipe parse_recipe(const std::string& text);
// The same recipe gives the same text; parse_recipe() of it gives the same recipe. Ends in a newline.
std::string print_recipe(const Recipe& recipe);

// Every step with every option spelled out, for archives: a later change of a default changes nothing.
Recipe with_all_options(const Recipe& recipe);

}  // namespace quern::passes
