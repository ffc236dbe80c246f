// What inspect tells of mixtures of experts, before and behind a conversion.
#include <gtest/gtest.h>

#include "tests/cli/quern_binary.h"
#include "tests/support/temp_dir.h"

namespace quern::test {
namespace {

// Two layers of four experts with three matrices of 32 by 16 each; two of the four serve a token.
TEST(InspectExperts, CountsThemAndWhatIsActive) {
  const TempDir folder;
  const std::string model = source_path("tests/models/families/mixtral.onnx").string();
  const std::string artifact = (folder / "mixtral.quern").string();
  ASSERT_EQ(quern({"convert", model, "-o", artifact, "--weights", "int8"}).status, 0);
  for (const std::string& path : {model, artifact}) {
    const nlohmann::json facts = quern_json({"inspect", path});
    const nlohmann::json& experts = facts["decoder"]["experts"];
    EXPECT_EQ(experts["count"], 4) << path;
    EXPECT_EQ(experts["per_token"], 2) << path;
    EXPECT_EQ(experts["active_parameters"], facts["parameters"].get<int64_t>() - 2 * (4 - 2) * 3 * 32 * 16)
        << path;
    EXPECT_NE(quern({"inspect", path}).out.find("4, 2 for each token"), std::string::npos) << path;
  }
}

}  // namespace
}  // namespace quern::test
