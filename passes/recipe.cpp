#include "passes/recipe.h"

#include "ir/error.h"
#include "ir/near_names.h"
#include "passes/registry.h"

namespace quern::passes {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kMaxDepth = 16;
constexpr int64_t kMostRounds = 1000;

void check_keys(const json& object, const std::vector<std::string>& allowed, const std::string& where) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(allowed.begin(), allowed.end(), key) == allowed.end()) {
      throw_error(ErrorCode::InvalidArgument, where, ": unknown key '", key, "'", did_you_mean(key, allowed));
    }
  }
}

std::vector<RecipeStep> parse_steps(const json& list, const std::string& where, int depth);

RecipeStep parse_group(const json& object, const std::string& where, int depth) {
  check_keys(object, {"repeat", "max_rounds", "name"}, where);
  RecipeStep step;
  step.repeat = parse_steps(object["repeat"], where + ".repeat", depth + 1);
  if (object.contains("max_rounds")) {
    const json& rounds = object["max_rounds"];
    if (!rounds.is_number_integer() || rounds < 1 || rounds > kMostRounds) {
      throw_error(ErrorCode::InvalidArgument, where, ".max_rounds must be an integer from 1 to ", kMostRounds,
                  ", not ", rounds.dump());
    }
    step.max_rounds = rounds.get<int64_t>();
  }
  if (object.contains("name")) {
    if (!object["name"].is_string()) throw_error(ErrorCode::InvalidArgument, where, ".name must be a string");
    step.name = object["name"].get<std::string>();
  }
  return step;
}

RecipeStep parse_step(const json& item, const std::string& where, int depth) {
  if (item.is_string()) return parse_step(json{{"pass", item}}, where, depth);
  if (!item.is_object() || item.contains("pass") == item.contains("repeat")) {
    throw_error(ErrorCode::InvalidArgument, where, " must be an object with either 'pass' or 'repeat'");
  }
  if (item.contains("repeat")) return parse_group(item, where, depth);
  check_keys(item, {"pass", "options"}, where);
  if (!item["pass"].is_string()) throw_error(ErrorCode::InvalidArgument, where, ".pass must be a string");
  RecipeStep step{.pass = item["pass"].get<std::string>()};
  if (item.contains("options")) step.options = item["options"];
  with_context("reading " + where + " of the recipe",
               [&] { PassRegistry::instance().create(step.pass, step.options); });
  return step;
}

std::vector<RecipeStep> parse_steps(const json& list, const std::string& where, int depth) {
  if (!list.is_array() || list.empty()) {
    throw_error(ErrorCode::InvalidArgument, where, " must be a list of at least one step");
  }
  if (depth > kMaxDepth) throw_error(ErrorCode::InvalidArgument, where, ": groups are nested too deeply");
  std::vector<RecipeStep> steps;
  for (size_t i = 0; i < list.size(); ++i) {
    steps.push_back(parse_step(list[i], concat(where, "[", i, "]"), depth));
  }
  return steps;
}

ordered_json to_json(const RecipeStep& step) {
  ordered_json result;
  if (!step.is_group()) {
    result["pass"] = step.pass;
    if (!step.options.empty()) result["options"] = step.options;
    return result;
  }
  if (!step.name.empty()) result["name"] = step.name;
  result["repeat"] = ordered_json::array();
  for (const RecipeStep& inner : step.repeat) result["repeat"].push_back(to_json(inner));
  result["max_rounds"] = step.max_rounds;
  return result;
}

void fill_options(std::vector<RecipeStep>& steps) {
  for (RecipeStep& step : steps) {
    if (step.is_group()) {
      fill_options(step.repeat);
    } else {
      step.options = PassRegistry::instance().create(step.pass, step.options)->options().values();
    }
  }
}

json parse_text(const std::string& text) {
  try {
    return json::parse(text);
  } catch (const json::exception& error) {
    throw_error(ErrorCode::InvalidArgument, "the recipe is not valid JSON: ", error.what());
  }
}

}  // namespace

Recipe parse_recipe(const std::string& text) {
  const json root = parse_text(text);
  if (!root.is_object() || !root.contains("quern_recipe") || !root["quern_recipe"].is_number_integer()) {
    throw_error(ErrorCode::InvalidArgument,
                "a recipe is a JSON object with an integer 'quern_recipe' (its version, ", Recipe::kVersion,
                ")");
  }
  if (root["quern_recipe"] < 1)
    throw_error(ErrorCode::InvalidArgument, "the recipe's version must be 1 or more");
  if (root["quern_recipe"] > Recipe::kVersion) {
    throw_error(ErrorCode::Unsupported, "the recipe has version ", root["quern_recipe"].dump(),
                ", this quern reads up to ", Recipe::kVersion, "; use a newer quern");
  }
  check_keys(root, {"quern_recipe", "name", "steps"}, "recipe");
  Recipe recipe;
  if (root.contains("name")) {
    if (!root["name"].is_string())
      throw_error(ErrorCode::InvalidArgument, "the recipe's name must be a string");
    recipe.name = root["name"].get<std::string>();
  }
  if (!root.contains("steps")) throw_error(ErrorCode::InvalidArgument, "the recipe has no 'steps'");
  recipe.steps = parse_steps(root["steps"], "steps", 0);
  return recipe;
}

std::string print_recipe(const Recipe& recipe) {
  ordered_json root;
  root["quern_recipe"] = Recipe::kVersion;
  if (!recipe.name.empty()) root["name"] = recipe.name;
  root["steps"] = ordered_json::array();
  for (const RecipeStep& step : recipe.steps) root["steps"].push_back(to_json(step));
  return root.dump(2) + "\n";
}

Recipe with_all_options(const Recipe& recipe) {
  Recipe result = recipe;
  fill_options(result.steps);
  return result;
}

}  // namespace quern::passes
