// Retrieval through the program.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/cli/quern_binary.h"
#include "tests/support/temp_dir.h"

namespace quern::test {
namespace {

TEST(DatastoreCommand, GuessesFromATextChangeNothing) {
  const TempDir dir;
  const std::string store = (dir / "s.qds").string(), model = example("model.onnx");
  std::vector<std::string> words = {"generate", model, "-p", "It was a dark night and", "-n", "60", "-q"};
  const nlohmann::json plain = quern_json(words);
  // The text that will be written, and another one.
  std::ofstream(dir / "a.txt") << "It was a dark night and" << plain["text"].get<std::string>();
  std::ofstream(dir / "b.jsonl") << nlohmann::json{{"text", "Nothing to do with it."}}.dump() << "\n\n";
  const nlohmann::json built =
      quern_json({"datastore", "build", (dir / "a.txt").string(), (dir / "b.jsonl").string(), "--tokenizer",
                  example("tokenizer.json"), "-o", store, "-q"});
  EXPECT_GT(built["tokens"].get<int>(), 60);
  words.insert(words.end(), {"--speculate", "rest", "--datastore", store, "--draft-length", "12"});
  const nlohmann::json guessed = quern_json(words);
  EXPECT_EQ(guessed["ids"], plain["ids"]);
  EXPECT_GT(guessed["speculation"]["tokens_per_round"].get<double>(), 2);
}

TEST(DatastoreCommand, RefusesWhatDoesNotGoTogether) {
  const TempDir dir;
  const std::string store = (dir / "s.qds").string(), model = example("model.onnx");
  std::ofstream(dir / "a.txt") << "some text";
  std::ofstream(dir / "b.jsonl") << "{\"no\": 1}\n";
  const std::string tokenizer = example("tokenizer.json");
  ASSERT_EQ(
      quern({"datastore", "build", (dir / "a.txt").string(), "--tokenizer", tokenizer, "-o", store, "-q"})
          .status,
      0);
  expect_refused(
      quern({"datastore", "build", (dir / "b.jsonl").string(), "--tokenizer", tokenizer, "-o", store}), 3,
      {"line 1"});
  expect_refused(quern({"datastore", "build", (dir / "a.txt").string(), "-o", store}), 2, {"--tokenizer"});
  expect_refused(quern({"datastore", "look", (dir / "a.txt").string(), "-o", store}), 2, {"look"});
  expect_refused(quern({"generate", model, "-p", "x", "--speculate", "rest", "-q"}), 2, {"--datastore"});
  // The same tokenizer in other bytes can't be told from another one.
  std::filesystem::copy_file(tokenizer, dir / "tokenizer.json");
  std::ofstream(dir / "tokenizer.json", std::ios::app) << "\n";
  expect_refused(quern({"generate", model, "--tokenizer", (dir / "tokenizer.json").string(), "-p", "x",
                        "--speculate", "rest", "--datastore", store, "-q"}),
                 3, {"another tokenizer"});
}

}  // namespace
}  // namespace quern::test
