// The whole road on the example decoder: convert, generate, validate, against what PyTorch recorded of it.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "tests/cli/quern_binary.h"
#include "tests/support/temp_dir.h"

namespace quern::test {
namespace {

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

nlohmann::json reference() {
  return nlohmann::json::parse(read_all(example("reference.json")));
}

std::string join(const nlohmann::json& ids) {
  std::string text;
  for (const auto& id : ids) text += (text.empty() ? "" : ",") + id.dump();
  return text;
}

TEST(MainJob, GreedyTokensAreTheRecordedOnes) {
  const nlohmann::json recorded = reference();
  const nlohmann::json result = quern_json(
      {"generate", example("model.onnx"), "--ids", join(recorded["prompt_ids"]), "-n", "64", "--quiet"});
  EXPECT_EQ(result["ids"], recorded["greedy_64"]);
}

TEST(MainJob, AnFp32ArtifactDecodesAsTheModelDoes) {
  const TempDir dir;
  const std::string artifact = (dir / "fp32.quern").string();
  ASSERT_EQ(quern({"convert", example("model.onnx"), "--weights", "fp32", "-o", artifact, "--quiet"}).status,
            0);
  const nlohmann::json recorded = reference();
  const nlohmann::json result =
      quern_json({"generate", artifact, "--ids", join(recorded["prompt_ids"]), "-n", "64", "--quiet"});
  EXPECT_EQ(result["ids"], recorded["greedy_64"]);
}

TEST(MainJob, TheSameInputGivesTheSameBytes) {
  const TempDir dir;
  for (const char* name : {"a.quern", "b.quern"}) {
    const ProgramResult result =
        quern({"convert", example("model.onnx"), "-o", (dir / name).string(), "--quiet"});
    ASSERT_EQ(result.status, 0) << result.err;
  }
  EXPECT_EQ(read_all(dir / "a.quern"), read_all(dir / "b.quern"));
  // The tied head is stored once: 3.9 M weights of 8 bits, and the tokenizer.
  EXPECT_LT(std::filesystem::file_size(dir / "a.quern"), 4'500'000U);
}

TEST(MainJob, Int8IsValidatedAndAThresholdDecides) {
  const TempDir dir;
  const std::string artifact = (dir / "int8.quern").string();
  ASSERT_EQ(quern({"convert", example("model.onnx"), "-o", artifact, "--quiet"}).status, 0);
  std::ofstream(dir / "text.txt") << read_all(example("heldout.txt")).substr(0, 8000);
  const std::vector<std::string> words = {"validate", example("model.onnx"),       artifact,
                                          "--data",   (dir / "text.txt").string(), "--quiet"};
  std::vector<std::string> kept = words;
  kept.insert(kept.end(), {"--max-ppl-increase", "1%", "--min-top1", "0.95"});
  const nlohmann::json result = quern_json(kept);
  EXPECT_NEAR(
      result["candidate"]["perplexity"].get<double>() / result["reference"]["perplexity"].get<double>(), 1.0,
      0.005);
  EXPECT_GT(result["top1"].get<double>(), 0.97);
  std::vector<std::string> missed = words;
  missed.insert(missed.end(), {"--min-top1", "1.0"});
  quern_json(missed, 1);
}

}  // namespace
}  // namespace quern::test
