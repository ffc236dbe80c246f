// Early exits and self-speculation through the program.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/cli/quern_binary.h"
#include "tests/support/temp_dir.h"

namespace quern::test {
namespace {

class ExitsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = new TempDir();
    artifact_ = (*dir_ / "exits.quern").string();
    const ProgramResult result = quern(
        {"convert", example("model.onnx"), "-o", artifact_, "--weights", "int8", "--exit-heads", "1", "-q"});
    ASSERT_EQ(result.status, 0) << result.err;
  }
  static void TearDownTestSuite() { delete dir_; }

  static nlohmann::json generate(std::vector<std::string> more) {
    std::vector<std::string> words = {"generate", artifact_, "-p", "It was a dark night and",
                                      "-n",       "40",      "-q"};
    words.insert(words.end(), more.begin(), more.end());
    return quern_json(words);
  }

  static inline TempDir* dir_ = nullptr;
  static inline std::string artifact_;
};

TEST_F(ExitsTest, SelfSpeculationGivesTheSameText) {
  const nlohmann::json plain = generate({});
  for (const std::string layers : {"exit:1", "first:1", "0"}) {
    const nlohmann::json guessed =
        generate({"--speculate", "self", "--draft-layers", layers, "--draft-length", "3"});
    EXPECT_EQ(guessed["ids"], plain["ids"]) << layers;
    EXPECT_GT(guessed["speculation"]["verified"].get<int>(), 0);
  }
  EXPECT_EQ(generate({"--speculate", "self"})["ids"], plain["ids"]);
}

TEST_F(ExitsTest, TuneDraftWritesWhatDraftLayersReads) {
  const std::string file = (*dir_ / "draft.json").string();
  const nlohmann::json found = quern_json({"tune-draft", artifact_, "--data", example("heldout.txt"),
                                           "--positions", "64", "--context", "48", "-o", file, "-q"});
  EXPECT_GT(found["measured"].get<int>(), 0);
  EXPECT_GT(found["candidates"][0]["agreement"].get<double>(), 0);
  EXPECT_EQ(generate({"--speculate", "self", "--draft-layers", file})["ids"], generate({})["ids"]);
}

TEST_F(ExitsTest, ExitsAreCounted) {
  const nlohmann::json plain = generate({}), careful = generate({"--exit", "margin:1"}),
                       careless = generate({"--exit", "margin:0"});
  EXPECT_EQ(careful["ids"], plain["ids"]);
  EXPECT_EQ(careful["exits"]["average_layers"], careful["exits"]["layers"]);
  EXPECT_EQ(careless["exits"]["average_layers"].get<double>(), 1);
  EXPECT_EQ(careless["exits"]["exits"][0]["share"].get<double>(), 1);
  EXPECT_EQ(generate({"--exit", "fixed:1"})["ids"], careless["ids"]);
}

TEST_F(ExitsTest, CalibratedThresholdsAreReadBack) {
  const std::string file = (*dir_ / "exits.json").string();
  const nlohmann::json found =
      quern_json({"calibrate-exits", artifact_, "--data", example("heldout.txt"), "--windows", "20",
                  "--context", "16", "--prompt", "8", "--tolerance", "50%", "-o", file, "-q"});
  EXPECT_EQ(found["tolerance"].get<double>(), 0.5);
  EXPECT_TRUE(found["steps"][0]["accepted"].get<bool>());
  EXPECT_EQ(generate({"--exit", file})["exits"]["tokens"].get<int>(), 39);
}

TEST_F(ExitsTest, ValidateScoresWithExits) {
  const nlohmann::json result =
      quern_json({"validate", artifact_, artifact_, "--data", example("heldout.txt"), "--samples", "1",
                  "--context", "40", "--no-speed", "--exit", "fixed:1", "-q"});
  EXPECT_EQ(result["exits"]["average_layers"].get<double>(), 1);
}

TEST_F(ExitsTest, RefusesWhatDoesNotGoTogether) {
  const auto refused = [&](std::vector<std::string> more, int status, const std::vector<std::string>& parts) {
    more.insert(more.begin(), {"generate", artifact_, "--ids", "1", "-n", "2", "-q"});
    expect_refused(quern(more), status, parts);
  };
  refused({"--exit", "margin:2"}, 2, {"from 0 to 1"});
  refused({"--exit", "fixed:9"}, 2, {"no exit head behind layer 9"});
  refused({"--exit", "margin:0.5", "--speculate", "ngram"}, 2, {"exclude"});
  refused({"--exit-decay", "4"}, 2, {"without --exit"});
  refused({"--draft-layers", "0"}, 2, {"--speculate"});
  refused({"--speculate", "self", "--draft-layers", "0-99"}, 2, {"some of the model's"});
  refused({"--speculate", "self", "--draft-layers", "3-1"}, 2, {"layers ascend"});
}

// Files are held to what the options are.
TEST_F(ExitsTest, RefusesFilesThatMakeNoSense) {
  const std::string file = (*dir_ / "side.json").string();
  const auto refused = [&](const std::string& content, std::vector<std::string> more,
                           const std::string& part) {
    write_text(file, content);
    more.insert(more.begin(), {"generate", artifact_, "--ids", "1", "-n", "2", "-q"});
    more.push_back(file);
    expect_refused(quern(more), 3, {"side.json", part});
  };
  for (const char* head : {"null", "7", "\"x\""}) {
    refused(std::string("{\"layers\": [0], \"exit_head\": ") + head + "}",
            {"--speculate", "self", "--draft-layers"}, "true or false");
  }
  const auto refused_rule = [&](const std::string& content, const std::string& part) {
    refused(content, {"--exit"}, part);
  };
  refused_rule("{\"confidence\": \"margin\", \"threshold\": -5}", "between 0 and 1");
  refused_rule("{\"confidence\": \"margin\", \"threshold\": 1e308}", "between 0 and 1");
  refused_rule("{\"confidence\": \"margin\", \"threshold\": 0.1, \"decay\": -1}", "between 0 and 1000");
  refused_rule("{\"confidence\": \"margin\", \"threshold\": 0.1, \"layers\": 2}", "no list");
  refused_rule("{\"confidence\": \"fixed\", \"threshold\": 0}", "behind one layer");
  refused_rule("{\"confidence\": \"margin\", \"threshold\": 1e999}", "no JSON");
}

}  // namespace
}  // namespace quern::test
