// Number formats and methods, through the program, on the example decoder.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "tests/cli/quern_binary.h"
#include "tests/support/temp_dir.h"

namespace quern::test {
namespace {

class Schemes : public testing::Test {
 protected:
  Schemes() {
    std::ifstream file(example("heldout.txt"), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    std::ofstream(dir_ / "text.txt") << text.substr(0, 8000);
  }

  // Of the artifact that `options` give, as the runtime computes it.
  nlohmann::json validated(std::vector<std::string> options) {
    const std::string artifact = (dir_ / "m.quern").string();
    options.insert(options.begin(), {"convert", example("model.onnx"), "-o", artifact, "--quiet"});
    const ProgramResult result = quern(options);
    EXPECT_EQ(result.status, 0) << result.err;
    return quern_json({"validate", example("model.onnx"), artifact, "--data", (dir_ / "text.txt").string(),
                       "--quiet", "--no-speed"});
  }

  TempDir dir_;
};

double kl(const nlohmann::json& result) {
  return result["kl"]["mean"].get<double>();
}
double bits(const nlohmann::json& result) {
  return result["candidate"]["bits_per_weight"].get<double>();
}

TEST_F(Schemes, EightBitFloatsRunAtTheirPrecision) {
  const nlohmann::json narrow = validated({"--weights", "fp8-e4m3"});
  const nlohmann::json wide = validated({"--weights", "fp8-e5m2"});
  EXPECT_LT(bits(narrow), 8.5);
  EXPECT_LT(kl(narrow), 0.02);
  // One bit less of significand is twice the error, four times the divergence.
  EXPECT_GT(kl(wide), 2 * kl(narrow));
  EXPECT_LT(kl(wide), 8 * kl(narrow));
}

TEST_F(Schemes, LeastSquaresBeatsTheRangeAtThreeBits) {
  const nlohmann::json nearest = validated({"--weights", "int3"});
  const nlohmann::json fitted = validated({"--weights", "int3", "--method", "lsq"});
  EXPECT_NEAR(bits(nearest), 3.5, 0.1);
  EXPECT_EQ(bits(fitted), bits(nearest));
  EXPECT_LT(kl(fitted), 0.9 * kl(nearest));
}

TEST_F(Schemes, TwoBitsStillRun) {
  const nlohmann::json result = validated({"--weights", "int2", "--asymmetric", "--group-size", "16",
                                           "--override", "embed=int8", "--clip", "mse"});
  EXPECT_LT(bits(result), 5);
  EXPECT_LT(kl(result), 5);
}

TEST_F(Schemes, NonsenseIsRefused) {
  const std::string artifact = (dir_ / "m.quern").string();
  const auto convert = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"convert", example("model.onnx"), "-o", artifact, "--quiet"});
    return quern(options);
  };
  expect_refused(convert({"--clip", "percentile:200"}), 2, {"percentile:200", "percentile:99.9"});
  expect_refused(convert({"--weights", "fp8-e4m3", "--asymmetric"}), 2, {"no zero points"});
  expect_refused(convert({"--granularity", "tensor", "--method", "lsq"}), 4, {"per channel or group"});
  EXPECT_FALSE(std::filesystem::exists(artifact));
}

}  // namespace
}  // namespace quern::test
