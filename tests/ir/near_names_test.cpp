#include "ir/near_names.h"

#include <gtest/gtest.h>

namespace quern {
namespace {

const std::vector<std::string> kNames = {"convert",  "inspect", "validate",
                                         "generate", "bench",   "model.layers.0.mlp.up_proj.weight"};

TEST(NearNames, FindsSlipsOfEveryKind) {
  EXPECT_EQ(near_names("convrt", kNames), std::vector<std::string>{"convert"});     // left out
  EXPECT_EQ(near_names("connvert", kNames), std::vector<std::string>{"convert"});   // doubled
  EXPECT_EQ(near_names("ocnvert", kNames), std::vector<std::string>{"convert"});    // swapped
  EXPECT_EQ(near_names("Validate", kNames), std::vector<std::string>{"validate"});  // case
}

TEST(NearNames, FindsWhatContainsTheName) {
  EXPECT_EQ(near_names("up_proj", kNames), std::vector<std::string>{"model.layers.0.mlp.up_proj.weight"});
}

TEST(NearNames, SaysNothingWhereNothingIsNear) {
  EXPECT_TRUE(near_names("quantise", kNames).empty());
  EXPECT_TRUE(near_names("", kNames).empty());
  EXPECT_EQ(did_you_mean("zzz", kNames), "");
}

TEST(NearNames, KeepsToTheLimitNearestFirst) {
  const std::vector<std::string> names = {"w3", "w2", "v1", "w1x", "w1"};
  EXPECT_EQ(near_names("w1", names, 2), (std::vector<std::string>{"w1", "w3"}));
  EXPECT_EQ(did_you_mean("w1", names), "; did you mean 'w1', 'w3' or 'w2'?");
}

TEST(NearNames, StandsVeryLongNames) {
  const std::vector<std::string> names = {std::string(1 << 20, 'a') + ".weight"};
  EXPECT_EQ(near_names(std::string(1 << 20, 'a') + ".weihgt", names).size(), 1u);
}

}  // namespace
}  // namespace quern
