#include <gtest/gtest.h>

#include "tests/cli/quern_binary.h"

namespace quern::test {
namespace {

TEST(PassesCommand, ListsAllAndExplainsOne) {
  const ProgramResult list = quern({"passes"});
  EXPECT_EQ(list.status, 0);
  EXPECT_NE(list.out.find("dead-code"), std::string::npos);
  const ProgramResult one = quern({"passes", "dead-code"});
  EXPECT_TRUE(one.out.starts_with("dead-code: ")) << one.out;
}

TEST(PassesCommand, JsonHasEveryOptionWithItsDefault) {
  const nlohmann::json all = quern_json({"passes"}).at("passes");
  ASSERT_FALSE(all.empty());
  for (const nlohmann::json& pass : all) {
    EXPECT_TRUE(pass.at("name").is_string());
    EXPECT_FALSE(pass.at("summary").get<std::string>().empty()) << pass;
    for (const nlohmann::json& option : pass.at("options")) {
      EXPECT_TRUE(option.contains("default")) << pass;
      EXPECT_FALSE(option.at("documentation").get<std::string>().empty()) << pass;
    }
  }
}

TEST(PassesCommand, NamesNearPasses) {
  expect_refused(quern({"passes", "dead-cod"}), 2,
                 {"there is no pass 'dead-cod'; did you mean 'dead-code'?"});
}

}  // namespace
}  // namespace quern::test
