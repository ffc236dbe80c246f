// Kept prefixes and many prompts through the program.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "tests/cli/quern_binary.h"
#include "tests/support/temp_dir.h"

namespace quern::test {
namespace {

const std::string kSystem =
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of "
    "foolishness, it was the epoch of belief, it was the epoch of incredulity.";

class PrefixTest : public testing::Test {
 protected:
  static std::vector<int64_t> generate(const std::string& prompt, std::vector<std::string> more = {},
                                       nlohmann::json* all = nullptr) {
    std::vector<std::string> words = {"generate", example("model.onnx"), "-p", prompt, "-n", "12", "-q"};
    words.insert(words.end(), more.begin(), more.end());
    const nlohmann::json result = quern_json(words);
    if (all != nullptr) *all = result;
    return result["ids"].get<std::vector<int64_t>>();
  }
  TempDir dir_;
};

TEST_F(PrefixTest, AFileOfKeysAndValuesChangesNothingButTheWork) {
  const std::string file = (dir_ / "system.qkv").string();
  const nlohmann::json built =
      quern_json({"cache", "build", example("model.onnx"), "-p", kSystem, "-o", file, "-q"});
  EXPECT_GT(built["tokens"].get<int>(), 30);
  const std::string prompt = kSystem + " He said";
  nlohmann::json warm;
  EXPECT_EQ(generate(prompt, {"--prefix-cache", file}, &warm), generate(prompt));
  EXPECT_GE(warm["timing"]["cached_tokens"].get<int>(), built["tokens"].get<int>() - 1);
  EXPECT_EQ(generate(prompt, {"--prefix-cache", dir_.path().string()}), generate(prompt));
  // Another model's file is refused by name, passed over in a folder.
  const std::string artifact = (dir_ / "m.quern").string();
  ASSERT_EQ(quern({"convert", example("model.onnx"), "-o", artifact, "-q"}).status, 0);
  expect_refused(quern({"generate", artifact, "-p", "x", "--prefix-cache", file, "-q"}), 3,
                 {"system.qkv", "another model"});
  EXPECT_EQ(
      quern({"generate", artifact, "-p", "x", "-n", "2", "--prefix-cache", dir_.path().string()}).status, 0);
  ASSERT_EQ(quern({"cache", "build", artifact, "-p", kSystem, "-o", file, "-q"}).status, 0);
  EXPECT_EQ(quern({"generate", artifact, "-p", "x", "-n", "2", "--prefix-cache", file, "-q"}).status, 0);
  std::ofstream(dir_ / "bad.qkv") << "QUERNKV1";
  expect_refused(
      quern({"generate", artifact, "-p", "x", "--prefix-cache", (dir_ / "bad.qkv").string(), "-q"}), 3,
      {"bad.qkv"});
}

TEST_F(PrefixTest, ManyPromptsGiveTheTextsOfEach) {
  const std::vector<std::string> prompts = {kSystem + " He", kSystem + " She", "A dark",
                                            kSystem + " They went"};
  std::ofstream file(dir_ / "prompts.jsonl");
  file << nlohmann::json(prompts[0]).dump() << "\n\n";
  file << nlohmann::json{{"prompt", prompts[1]}}.dump() << "\n"
       << nlohmann::json{{"text", prompts[2]}}.dump() << "\n";
  const nlohmann::json ids =
      quern_json({"tokenize", example("tokenizer.json"), "--text", prompts[3], "-q"})["ids"];
  file << nlohmann::json{{"ids", ids}}.dump() << "\n";
  file.close();
  for (const char* parallel : {"1", "2", "8"}) {
    const nlohmann::json result =
        quern_json({"generate", example("model.onnx"), "--prompts", (dir_ / "prompts.jsonl").string(),
                    "--parallel", parallel, "-n", "12", "-q"});
    ASSERT_EQ(result["results"].size(), 4U);
    for (size_t i = 0; i < 4; ++i)
      EXPECT_EQ(result["results"][i]["ids"].get<std::vector<int64_t>>(), generate(prompts[i])) << i;
    EXPECT_GT(result["timing"]["cached_tokens"].get<int>(), 60);
    EXPECT_GT(result["timing"]["tokens_per_second"].get<double>(), 0);
    EXPECT_EQ(result["prefix_cache"]["lookups"].get<int>(), 4);
  }
  const ProgramResult lines =
      quern({"generate", example("model.onnx"), "--prompts", (dir_ / "prompts.jsonl").string(), "-n", "4",
             "-q", "--speculate", "ngram"});
  EXPECT_EQ(lines.status, 0);
  EXPECT_EQ(std::count(lines.out.begin(), lines.out.end(), '\n'), 4);
}

TEST_F(PrefixTest, BadPromptsAreNamedByTheirLine) {
  std::ofstream(dir_ / "p.jsonl") << "\"fine\"\n{\"prompt\": 3}\n";
  const std::string file = (dir_ / "p.jsonl").string();
  expect_refused(quern({"generate", example("model.onnx"), "--prompts", file, "-q"}), 3, {"line 2"});
  expect_refused(quern({"generate", example("model.onnx"), "--prompts", file, "-p", "x", "-q"}), 2,
                 {"--prompts"});
}

}  // namespace
}  // namespace quern::test
