#include <gtest/gtest.h>

#include "tests/cli/quern_binary.h"
#include "tests/support/temp_dir.h"

namespace quern::test {
namespace {

std::string fixture(const std::string& name) {
  return source_path("tests/tokenizer/fixtures/" + name).string();
}

TEST(TokenizeCommand, EncodesAndDecodes) {
  const std::string tokenizer = example("tokenizer.json");
  const auto encoded = quern_json({"tokenize", tokenizer, "--text", "It was a dark night."});
  EXPECT_EQ(encoded["text"], "It was a dark night.");
  EXPECT_EQ(encoded["ids"].size(), encoded["count"]);
  EXPECT_EQ(encoded["tokens"].size(), encoded["count"]);
  EXPECT_EQ(encoded["tokens"][0], "It");
  std::string ids;
  for (const auto& id : encoded["ids"]) ids += (ids.empty() ? "" : ",") + id.dump();
  EXPECT_EQ(quern({"tokenize", tokenizer, "-p", "It was a dark night."}).out, ids + "\n");
  EXPECT_EQ(quern({"tokenize", tokenizer, "--decode", ids}).out, "It was a dark night.\n");
  EXPECT_EQ(quern_json({"tokenize", tokenizer, "--decode", ids})["text"], "It was a dark night.");
}

TEST(TokenizeCommand, ReproducesTheExamplesPrompt) {
  const auto reference = nlohmann::json::parse(read_text(example("reference.json")));
  const std::vector<int64_t> ids = reference.at("prompt_ids");
  std::string list;
  for (const int64_t id : ids) list += std::to_string(id) + ",";
  const auto decoded = quern_json({"tokenize", example("tokenizer.json"), "--decode", list});
  EXPECT_EQ(quern_json({"tokenize", example(""), "-p", decoded.at("text")}), decoded);
}

TEST(TokenizeCommand, ReadsFilesAndStandardInput) {
  const TempDir dir;
  write_text(dir / "t.txt", "a dark night");
  const auto from_file =
      quern_json({"tokenize", example("tokenizer.json"), "--file", (dir / "t.txt").string()});
  ProgramRun how;
  how.standard_input = "a dark night";
  EXPECT_EQ(quern_json({"tokenize", example("tokenizer.json")}, 0, how), from_file);
}

TEST(TokenizeCommand, SpecialTokensCanBeLeftOut) {
  const std::string tokenizer = fixture("llama3.json");
  const auto with = quern_json({"tokenize", tokenizer, "--text", "Hi"});
  const auto without = quern_json({"tokenize", tokenizer, "--text", "Hi", "--no-special"});
  EXPECT_EQ(with["tokens"][0], "<|begin_of_text|>");
  EXPECT_EQ(with["ids"].size(), without["ids"].size() + 1);
  const std::string begin = with["ids"][0].dump();
  EXPECT_EQ(quern({"tokenize", tokenizer, "--decode", begin}).out, "<|begin_of_text|>\n");
  EXPECT_EQ(quern({"tokenize", tokenizer, "--decode", begin, "--no-special"}).out, "\n");
}

TEST(TokenizeCommand, FindsTheTokenizerOfFoldersModelsAndArtifacts) {
  const TempDir dir;
  const auto expected = quern_json({"tokenize", example("tokenizer.json"), "--text", "Night"});
  EXPECT_EQ(quern_json({"tokenize", example(""), "--text", "Night"}), expected);
  EXPECT_EQ(quern_json({"tokenize", example("model.onnx"), "--text", "Night"}), expected);
  const std::string artifact = (dir / "m.quern").string();
  ASSERT_EQ(quern({"convert", example("model.onnx"), "-o", artifact, "--quiet"}).status, 0);
  EXPECT_EQ(quern_json({"tokenize", artifact, "--text", "Night"}), expected);
  std::filesystem::copy(fixture("other/bpe.model"), dir / "tokenizer.model");
  EXPECT_EQ(quern_json({"tokenize", dir.path().string(), "--text", "Night"}),
            quern_json({"tokenize", fixture("other/bpe.model"), "--text", "Night"}));
}

TEST(TokenizeCommand, RefusesWhatMakesNoSense) {
  const TempDir dir;
  expect_refused(quern({"tokenize", example("tokenizer.json"), "--decode", "99999"}), 2,
                 {"no token 99999", "4096"});
  expect_refused(quern({"tokenize", example("tokenizer.json"), "--text", "a", "--decode", "1"}), 2,
                 {"exclude"});
  expect_refused(quern({"tokenize", example("tokenizer.json"), "--decode", "1,x"}), 2, {"'x'"});
  expect_refused(quern({"tokenize", example("heldout.txt"), "-p", "a"}), 3, {"heldout.txt"});
  expect_refused(quern({"tokenize", dir.path().string(), "--text", "a"}), 5, {"no tokenizer in"});
  write_text(dir / "tokenizer.json", "{\"model\": {");
  expect_refused(quern({"tokenize", dir.path().string(), "--text", "a"}), 3, {"tokenizer.json"});
}

}  // namespace
}  // namespace quern::test
