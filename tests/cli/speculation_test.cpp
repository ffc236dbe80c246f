// Speculative decoding through the program.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/cli/quern_binary.h"
#include "tests/support/temp_dir.h"

namespace quern::test {
namespace {

class SpeculationTest : public testing::Test {
 protected:
  static nlohmann::json generate(std::vector<std::string> more) {
    std::vector<std::string> words = {
        "generate", example("model.onnx"), "-p", "It was a dark night and", "-n", "60", "-q"};
    words.insert(words.end(), more.begin(), more.end());
    return quern_json(words);
  }
};

TEST_F(SpeculationTest, NgramGivesTheSameText) {
  const nlohmann::json plain = generate({}), guessed = generate({"--speculate", "ngram"});
  EXPECT_FALSE(plain.contains("speculation"));
  EXPECT_EQ(guessed["ids"], plain["ids"]);
  EXPECT_EQ(guessed["text"], plain["text"]);
  EXPECT_EQ(guessed["speculation"]["tokens"].get<int>(), 59);
  const nlohmann::json fixed = generate({"--speculate", "ngram", "--draft-length", "8"});
  EXPECT_EQ(fixed["ids"], plain["ids"]);
  EXPECT_GT(fixed["speculation"]["accepted"].get<int>(), 0);
  EXPECT_LT(fixed["speculation"]["rounds"].get<int>(), 59);
}

TEST_F(SpeculationTest, ADraftGivesTheSameText) {
  const std::vector<std::string> draft = {"--speculate",         "draft",          "--draft",
                                          example("model.onnx"), "--draft-length", "4"};
  EXPECT_EQ(generate(draft)["ids"], generate({})["ids"]);
  std::vector<std::string> sampled = {"--temperature", "0.8", "--seed", "3"};
  const nlohmann::json plain = generate(sampled);
  sampled.insert(sampled.end(), draft.begin(), draft.end());
  EXPECT_EQ(generate(sampled)["ids"], plain["ids"]);
  sampled.insert(sampled.end(), {"--draft-rule", "rejection"});
  EXPECT_EQ(generate(sampled)["speculation"]["acceptance_rate"].get<double>(), 1.0);
}

TEST_F(SpeculationTest, BenchComparesWithPlainDecoding) {
  const nlohmann::json result =
      quern_json({"bench", example("model.onnx"), "--speculate", "ngram", "--against", "plain", "--text",
                  example("heldout.txt"), "-p", "40", "-n", "30", "--prompts", "2", "-r", "1", "-q"});
  EXPECT_EQ(result["identical"].get<bool>(), true);
  EXPECT_EQ(result["plain"]["tokens"].get<int>(), 58);
  EXPECT_EQ(result["speculative"]["tokens"].get<int>(), 58);
  EXPECT_GT(result["speedup"].get<double>(), 0);
  EXPECT_TRUE(result["speculative"].contains("acceptance_rate"));
}

TEST_F(SpeculationTest, RefusesWhatDoesNotGoTogether) {
  const std::string model = example("model.onnx");
  const auto refused = [&](std::vector<std::string> more, int status, const std::vector<std::string>& parts) {
    more.insert(more.begin(), {"generate", model, "--ids", "1", "-n", "2", "-q"});
    expect_refused(quern(more), status, parts);
  };
  refused({"--speculate", "draft"}, 2, {"--draft"});
  refused({"--draft", model}, 2, {"--speculate"});
  refused({"--speculate", "ngram", "--draft", model}, 2, {"--speculate draft"});
  expect_refused(quern({"bench", model, "--speculate", "ngram", "-q"}), 2, {"--text"});
  // The same model with two tokens renamed is another one to the eye of the tokenizer.
  const TempDir dir;
  std::filesystem::copy_file(model, dir / "model.onnx");
  std::ifstream in(example("tokenizer.json"));
  std::string json((std::istreambuf_iterator<char>(in)), {});
  nlohmann::json tokenizer = nlohmann::json::parse(json);
  nlohmann::json& vocab = tokenizer["model"]["vocab"];
  const nlohmann::json a = vocab["a"], b = vocab["b"];
  vocab["a"] = b;
  vocab["b"] = a;
  std::ofstream(dir / "tokenizer.json") << tokenizer.dump();
  refused({"--speculate", "draft", "--draft", (dir / "model.onnx").string()}, 3,
          {"another tokenizer", "token "});
}

TEST_F(SpeculationTest, TheExampleDraft) {
  QUERN_NEEDS_SHARED("models/storyteller-draft/model.onnx");
  const std::string draft = shared_path("models/storyteller-draft/model.onnx").string();
  const nlohmann::json plain = generate({});
  for (const char* length : {"1", "4", "16"}) {
    const nlohmann::json guessed =
        generate({"--speculate", "draft", "--draft", draft, "--draft-length", length});
    EXPECT_EQ(guessed["ids"], plain["ids"]);
    EXPECT_GT(guessed["speculation"]["accepted"].get<int>(), 0);
  }
}

}  // namespace
}  // namespace quern::test
