// Medusa heads through the program: put in, trained, tuned, decoded with.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/cli/quern_binary.h"
#include "tests/support/temp_dir.h"

namespace quern::test {
namespace {

class MedusaCommandTest : public testing::Test {
 protected:
  std::string convert(const std::string& heads, const std::string& weights) {
    const std::string path = (dir_ / (weights + ".quern")).string();
    EXPECT_EQ(quern({"convert", example("model.onnx"), "-o", path, "--weights", weights, "--medusa-heads",
                     heads, "-q"})
                  .status,
              0);
    return path;
  }
  static nlohmann::json generate(const std::string& model, std::vector<std::string> more) {
    std::vector<std::string> words = {"generate", model, "-p", "It was a dark night and", "-n", "60", "-q"};
    words.insert(words.end(), more.begin(), more.end());
    return quern_json(words);
  }
  // A piece of the example's text.
  std::string text(size_t bytes) {
    std::ifstream in(example("heldout.txt"));
    std::string all((std::istreambuf_iterator<char>(in)), {});
    const std::string path = (dir_ / "text.txt").string();
    std::ofstream(path) << all.substr(0, bytes);
    return path;
  }

  TempDir dir_;
};

TEST_F(MedusaCommandTest, GivesTheSameTextInEveryScheme) {
  for (const char* weights : {"keep", "fp16", "int8", "int4"}) {
    const std::string model = convert("fresh:3", weights);
    const nlohmann::json plain = generate(model, {});
    for (const char* tree : {"grown", "[[0]]", "[[0],[1],[2],[3],[0,0],[0,1],[1,0],[0,0,0]]"}) {
      const nlohmann::json guessed = generate(model, {"--speculate", "medusa", "--tree", tree});
      EXPECT_EQ(guessed["ids"], plain["ids"]) << weights << " " << tree;
      EXPECT_EQ(guessed["speculation"]["tokens"].get<int>(), 59);
    }
    const std::vector<std::string> sampled = {"--temperature", "0.8", "--seed", "3"};
    std::vector<std::string> guessed = sampled;
    guessed.insert(guessed.end(), {"--speculate", "medusa", "--draft-length", "6"});
    EXPECT_EQ(generate(model, guessed)["ids"], generate(model, sampled)["ids"]) << weights;
  }
}

TEST_F(MedusaCommandTest, TrainsPutsInTunesAndDecodes) {
  const std::string data = text(60'000), heads = (dir_ / "heads.safetensors").string();
  const nlohmann::json trained =
      quern_json({"train-heads", "medusa", example("model.onnx"), "--data", data, "-o", heads, "--heads", "2",
                  "--epochs", "1", "--window", "128", "--batch", "4", "--validations", "2", "-q"});
  ASSERT_EQ(trained["heads"].size(), 2u);
  const auto& history = trained["history"];
  EXPECT_LT(trained["heads"][0]["loss"].get<double>(), history[0]["validation"][0]["loss"].get<double>());
  EXPECT_FALSE(std::filesystem::exists(heads + ".checkpoint"));

  const std::string model = convert(heads, "int8");
  const nlohmann::json inspected = quern_json({"inspect", model});
  EXPECT_NE(inspected["decoder"]["traits"].dump().find("2 Medusa heads"), std::string::npos);
  EXPECT_NE(inspected["groups"].dump().find("Medusa heads"), std::string::npos);

  const nlohmann::json tuned = quern_json({"tune-medusa", model, "--text", data, "--nodes", "5", "--prompts",
                                           "4", "-p", "20", "-n", "20", "--store", "-q"});
  EXPECT_EQ(tuned["paths"].size(), 5u);
  EXPECT_EQ(tuned["accuracies"].size(), 2u);
  EXPECT_GT(tuned["expected_tokens_per_run"].get<double>(), 1);
  const nlohmann::json guessed = generate(model, {"--speculate", "medusa", "--whole-tree"});
  EXPECT_EQ(guessed["ids"], generate(model, {})["ids"]);
  EXPECT_GT(guessed["speculation"]["accepted"].get<int>(), 0);
  EXPECT_EQ(guessed["speculation"]["verified"].get<int>() % 5, 0);
  generate(model, {"--speculate", "medusa", "--typical-acceptance", "0.09"});
}

TEST_F(MedusaCommandTest, TheExampleHeads) {
  QUERN_NEEDS_SHARED("models/storyteller-medusa/medusa_heads.safetensors");
  const std::string model =
      convert(shared_path("models/storyteller-medusa/medusa_heads.safetensors").string(), "int8");
  const nlohmann::json plain = generate(model, {});
  for (const char* nodes : {"1", "4", "16"}) {
    const nlohmann::json guessed = generate(model, {"--speculate", "medusa", "--draft-length", nodes});
    EXPECT_EQ(guessed["ids"], plain["ids"]);
    EXPECT_GT(guessed["speculation"]["accepted"].get<int>(), 0);
  }
}

TEST_F(MedusaCommandTest, RefusesWhatDoesNotGoTogether) {
  const std::string model = example("model.onnx");
  const auto refused = [&](std::vector<std::string> more, int status, const std::vector<std::string>& parts) {
    more.insert(more.begin(), {"generate", model, "--ids", "1", "-n", "2", "-q"});
    expect_refused(quern(more), status, parts);
  };
  refused({"--speculate", "medusa"}, 2, {"no Medusa heads", "--medusa-heads"});
  refused({"--tree", "[[0]]"}, 2, {"--speculate"});
  refused({"--speculate", "ngram", "--typical-acceptance", "0.1"}, 2, {"--speculate medusa"});
  expect_refused(
      quern({"convert", model, "-o", (dir_ / "x.quern").string(), "--medusa-heads", "fresh:0", "-q"}), 2,
      {"fresh:K"});
  expect_refused(
      quern({"convert", model, "-o", (dir_ / "x.quern").string(), "--medusa-heads", "absent", "-q"}), 5,
      {"absent"});
  expect_refused(quern({"tune-medusa", model, "--text", model, "-q"}), 2, {"no Medusa heads"});
  expect_refused(quern({"train-heads", "exit", model, "-q"}), 2, {"medusa"});
  expect_refused(quern({"train-heads", "medusa", model, "-o", "x", "-q"}), 2, {"--data"});
}

}  // namespace
}  // namespace quern::test
