#include "passes/recipe.h"

#include <gtest/gtest.h>

#include "passes/options.h"
#include "passes/registry.h"
#include "tests/support/expect_error.h"

namespace quern::passes {
namespace {

using test::throws_error;

struct Fields {
  bool flag = true;
  int64_t count = 3;
  double alpha = 0.5;
  std::string mode = "a";
  std::vector<std::string> names = {};
  nlohmann::json overrides = nlohmann::json::array();
  OptionTable table;
  Fields() {
    table.add("flag", &flag, "A flag.");
    table.add("count", &count, "A count.");
    table.add("alpha", &alpha, "A number.");
    table.add("mode", &mode, "A mode.", {"a", "b"});
    table.add("names", &names, "Names.");
    table.add("overrides", &overrides, "Overrides.");
  }
};

TEST(Options, AreSetFromJsonAndRememberTheirDefaults) {
  Fields f;
  f.table.set({{"flag", false}, {"count", 7}, {"alpha", 1}, {"mode", "b"}, {"names", {"x", "y"}}}, "it");
  EXPECT_FALSE(f.flag);
  EXPECT_EQ(f.count, 7);
  EXPECT_EQ(f.alpha, 1.0);
  EXPECT_EQ(f.mode, "b");
  EXPECT_EQ(f.names, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(f.table.info()[1].default_value, 3);
  EXPECT_EQ(f.table.info()[3].type, "string");
  EXPECT_FALSE(f.table.changed_values().contains("overrides"));
  EXPECT_EQ(f.table.values().size(), 6u);
}

TEST(Options, RefuseUnknownNamesAndWrongTypes) {
  Fields f;
  const auto set = [&](const nlohmann::json& values) { f.table.set(values, "pass 'p'"); };
  EXPECT_QUERN_ERROR(set({{"cuont", 1}}), ErrorCode::InvalidArgument, "pass 'p'", "'cuont'",
                     "did you mean 'count'");
  EXPECT_QUERN_ERROR(set({{"count", "1"}}), ErrorCode::InvalidArgument, "'count'", "integer");
  EXPECT_QUERN_ERROR(set({{"count", 1.5}}), ErrorCode::InvalidArgument, "integer");
  EXPECT_QUERN_ERROR(set({{"count", uint64_t{1} << 63}}), ErrorCode::InvalidArgument, "integer");
  EXPECT_QUERN_ERROR(set({{"flag", 1}}), ErrorCode::InvalidArgument, "bool");
  EXPECT_QUERN_ERROR(set({{"mode", "c"}}), ErrorCode::InvalidArgument, "'c' is none of a, b");
  EXPECT_QUERN_ERROR(set({{"names", {1, 2}}}), ErrorCode::InvalidArgument, "list of strings");
  EXPECT_QUERN_ERROR(set(nlohmann::json::array({1})), ErrorCode::InvalidArgument, "object");
}

TEST(Registry, MakesPassesByNameAndDocumentsThem) {
  const PassRegistry& registry = PassRegistry::instance();
  ASSERT_FALSE(registry.names().empty());
  for (const std::string& name : registry.names()) {
    const auto pass = registry.create(name);
    EXPECT_EQ(pass->name(), name);
    EXPECT_FALSE(pass->summary().empty());
    EXPECT_EQ(pass->summary().find('\n'), std::string::npos);
    for (const OptionInfo& info : pass->options().info())
      EXPECT_FALSE(info.documentation.empty()) << info.name;
  }
  EXPECT_QUERN_ERROR(registry.create("dead-kode"), ErrorCode::InvalidArgument, "dead-code");
}

TEST(Recipe, RoundTripsAsText) {
  const std::string text = R"({"quern_recipe": 1, "name": "small", "steps": ["dead-code",
      {"repeat": [{"pass": "dead-code", "options": {}}], "max_rounds": 4, "name": "cleanup"}]})";
  const Recipe recipe = parse_recipe(text);
  ASSERT_EQ(recipe.steps.size(), 2u);
  EXPECT_EQ(recipe.steps[0].pass, "dead-code");
  EXPECT_TRUE(recipe.steps[1].is_group());
  EXPECT_EQ(recipe.steps[1].max_rounds, 4);
  const std::string printed = print_recipe(recipe);
  EXPECT_EQ(parse_recipe(printed), recipe);
  EXPECT_EQ(print_recipe(parse_recipe(printed)), printed);
  EXPECT_EQ(with_all_options(recipe).steps[0].options, nlohmann::json::object());
}

TEST(Recipe, ErrorsSayWhere) {
  const auto parse = [](const std::string& steps) {
    return parse_recipe(R"({"quern_recipe": 1, "steps": )" + steps + "}");
  };
  EXPECT_QUERN_ERROR(parse(R"(["dead-code", {"pass": "ded-code"}])"), ErrorCode::InvalidArgument, "steps[1]",
                     "did you mean 'dead-code'");
  EXPECT_QUERN_ERROR(parse(R"([{"repeat": ["nothing"]}])"), ErrorCode::InvalidArgument, "steps[0].repeat[0]");
  EXPECT_QUERN_ERROR(parse(R"([{"repeat": ["dead-code"], "max_rounds": 0}])"), ErrorCode::InvalidArgument,
                     "max_rounds");
  EXPECT_QUERN_ERROR(parse(R"([{"pass": "dead-code", "option": {}}])"), ErrorCode::InvalidArgument,
                     "'option'", "'options'");
  EXPECT_QUERN_ERROR(parse(R"([{"pass": "dead-code", "options": {"x": 1}}])"), ErrorCode::InvalidArgument,
                     "'x'");
  EXPECT_QUERN_ERROR(parse("[]"), ErrorCode::InvalidArgument, "steps");
  EXPECT_QUERN_ERROR(parse("[3]"), ErrorCode::InvalidArgument, "steps[0]");
  EXPECT_QUERN_ERROR(parse_recipe("{"), ErrorCode::InvalidArgument, "JSON");
  EXPECT_QUERN_ERROR(parse_recipe("{}"), ErrorCode::InvalidArgument, "quern_recipe");
  EXPECT_QUERN_ERROR(parse_recipe(R"({"quern_recipe": 2, "steps": ["dead-code"]})"), ErrorCode::Unsupported,
                     "version 2");
  std::string deep = R"(["dead-code"])";
  for (int i = 0; i < 40; ++i) deep = R"([{"repeat": )" + deep + "}]";
  EXPECT_QUERN_ERROR(parse(deep), ErrorCode::InvalidArgument, "nested");
}

}  // namespace
}  // namespace quern::passes
