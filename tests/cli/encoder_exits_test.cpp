// Early exits of encoders through the program.
#include <gtest/gtest.h>

#include <random>

#include "formats/npy/npy.h"
#include "tests/cli/quern_binary.h"
#include "tests/support/temp_dir.h"

namespace quern::test {
namespace {

std::string model(const std::string& name) {
  return source_path("tests/models/" + name + ".onnx").string();
}

// Rows of two lengths with labels.
std::string rows(int64_t count) {
  std::mt19937 random(5);
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    nlohmann::json ids = nlohmann::json::array();
    for (int64_t t = 0; t < 6 + i % 2; ++t) ids.push_back(3 + random() % 50);
    text += nlohmann::json{{"ids", ids}, {"label", i % 3}}.dump() + "\n";
  }
  return text;
}

class EncoderExitsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = new TempDir();
    write_text(at("rows.jsonl"), rows(80));
    artifact_ = at("bert.quern");
    const ProgramResult result = quern(
        {"convert", model("families/bert"), "-o", artifact_, "--weights", "int8", "--exit-heads", "1", "-q"});
    ASSERT_EQ(result.status, 0) << result.err;
  }
  static void TearDownTestSuite() { delete dir_; }

  static std::string at(const std::string& name) { return (*dir_ / name).string(); }
  static nlohmann::json validate(const std::string& artifact, const std::string& rule) {
    return quern_json(
        {"validate", artifact, artifact, "--data", at("rows.jsonl"), "--no-speed", "--exit", rule, "-q"});
  }

  static inline TempDir* dir_ = nullptr;
  static inline std::string artifact_;
};

TEST_F(EncoderExitsTest, EverySpellingOfAnEncoder) {
  for (const std::string name : {"families/bert", "families/distilbert", "families/roberta",
                                 "exporters/ort_bert", "exporters/ort_distilbert"}) {
    SCOPED_TRACE(name);
    const std::string artifact = at("spelling.quern");
    ASSERT_EQ(quern({"convert", model(name), "-o", artifact, "--weights", "fp32", "--exit-heads", "1", "-q"})
                  .status,
              0);
    const nlohmann::json careful = validate(artifact, "margin:1"), careless = validate(artifact, "fixed:1"),
                         some = validate(artifact, "margin:0.05");
    EXPECT_EQ(careful["top1"], 1);
    EXPECT_LT(careful["kl"]["mean"].get<double>(), 1e-6);
    EXPECT_EQ(careful["exits"]["average_layers"], 2);
    EXPECT_EQ(careless["exits"]["average_layers"], 1);
    EXPECT_GT(careless["kl"]["mean"].get<double>(), 1e-9);
    EXPECT_EQ(some["exits"]["sequences"], 80);
  }
}

TEST_F(EncoderExitsTest, TrainedHeadsAreCalibratedAndRun) {
  const std::string heads = at("exits.safetensors"), artifact = at("trained.quern"), rule = at("rule.json");
  const nlohmann::json trained =
      quern_json({"train-heads", "exits", model("families/bert"), "--layers", "1", "--data", at("rows.jsonl"),
                  "--epochs", "10", "--rate", "0.01", "-o", heads, "-q"});
  EXPECT_EQ(trained["windows"], 76);
  EXPECT_LT(trained["heads"][0]["loss"].get<double>(),
            trained["history"][0]["validation"][0]["loss"].get<double>());
  ASSERT_EQ(quern({"convert", model("families/bert"), "-o", artifact, "--exit-heads", heads, "-q"}).status,
            0);
  const nlohmann::json found = quern_json(
      {"calibrate-exits", artifact, "--data", at("rows.jsonl"), "--tolerance", "60%", "-o", rule, "-q"});
  EXPECT_EQ(found["windows"], 80);
  EXPECT_TRUE(found["steps"][0].contains("accuracy"));
  EXPECT_FALSE(found["steps"][0].contains("perplexity_increase"));
  const nlohmann::json& last = found["steps"].back();
  ASSERT_TRUE(last["accepted"].get<bool>()) << found;
  EXPECT_EQ(validate(artifact, rule)["exits"]["average_layers"], last["average_layers"]);
}

TEST_F(EncoderExitsTest, HeadsLearnLabels) {
  const auto train = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"train-heads", "exits", model("families/bert"), "--layers", "1", "-o",
                               at("labels.safetensors"), "-q"});
    return quern(more);
  };
  EXPECT_EQ(train({"--data", at("rows.jsonl"), "--loss", "labels", "--epochs", "1"}).status, 0);
  expect_refused(train({"--data", at("rows.jsonl"), "--loss", "text"}), 2, {"for decoders"});
  write_text(at("bare.jsonl"), "{\"ids\": [3, 4, 5]}\n");
  expect_refused(train({"--data", at("bare.jsonl"), "--loss", "labels"}), 3, {"no labels"});
  expect_refused(train({"--data", at("bare.jsonl")}), 3, {"too few to hold some back"});
  write_text(at("high.jsonl"), "{\"ids\": [3, 4, 5], \"label\": 3}\n");
  expect_refused(train({"--data", at("high.jsonl"), "--loss", "labels", "--validation", at("high.jsonl")}), 3,
                 {"label 3", "0 to 2"});
}

TEST_F(EncoderExitsTest, RunGivesLogitsAndLayers) {
  std::vector<std::string> words = {"run", artifact_, "--exit", "fixed:1", "-o", at("out")};
  for (const std::string name : {"input_ids", "attention_mask", "token_type_ids"}) {
    Tensor tensor = Tensor::zeros(DType::I64, {3, 5});
    for (int64_t i = 0; i < 15; ++i)
      tensor.set_int(i, name == "input_ids" ? 3 + 2 * i : name == "attention_mask" ? 1 : 0);
    npy::write(at(name + ".npy"), tensor);
    words.insert(words.end(), {"-i", name + "=" + at(name + ".npy")});
  }
  const nlohmann::json result = quern_json(words);
  EXPECT_EQ(result["exits"]["sequences"], 3);
  EXPECT_EQ(result["exits"]["exits"][0]["share"], 1);
  EXPECT_EQ(npy::read(at("out/exit_layers.npy")).to_ints(), (std::vector<int64_t>{1, 1, 1}));
  const Tensor logits = npy::read(at("out/logits.npy"));
  words.erase(words.begin() + 2, words.begin() + 4);
  quern_json(words);
  EXPECT_TRUE(identical(logits, npy::read(at("out/exit_logits.1.npy"))));
}

TEST_F(EncoderExitsTest, TokensLeaveByATable) {
  const nlohmann::json counted = validate(artifact_, "hash:" + at("rows.jsonl"));
  const double layers = counted["exits"]["average_layers"].get<double>();
  EXPECT_GT(layers, 1);
  EXPECT_LT(layers, 2);
  EXPECT_EQ(counted["exits"]["tokens"], 80 * 6 + 40);
  EXPECT_LT(counted["exits"]["rows_computed"], counted["exits"]["rows_of_all_layers"]);
  write_text(at("all.json"), nlohmann::json{{"layers_of_tokens", std::vector<int>(64, 2)}}.dump());
  const nlohmann::json all = validate(artifact_, "hash:" + at("all.json"));
  EXPECT_EQ(all["exits"]["average_layers"], 2);
  EXPECT_EQ(all["top1"], 1);

  const auto refused = [&](const std::string& file, std::vector<std::string> more, int status,
                           const std::string& part) {
    std::vector<std::string> words = {"validate",       artifact_, artifact_,      "--data",
                                      at("rows.jsonl"), "--exit",  "hash:" + file, "-q"};
    words.insert(words.end(), more.begin(), more.end());
    expect_refused(quern(words), status, {part});
  };
  refused(at("rows.jsonl"), {"--exit-layers", "2,1"}, 2, "ascending order");
  refused(at("rows.jsonl"), {"--exit-decay", "2"}, 2, "says nothing with");
  write_text(at("none.json"), "{\"layers_of_tokens\": [1, \"x\"]}");
  refused(at("none.json"), {}, 3, "a list of whole numbers");
  write_text(at("deep.json"), "{\"layers_of_tokens\": [3]}");
  refused(at("deep.json"), {}, 2, "a model of 2 layers");
  refused(at("all.json"), {"--exit-layers", "1"}, 2, "says itself where");
}

TEST_F(EncoderExitsTest, RefusesWhatDoesNotFit) {
  const auto refused = [&](const std::string& rule, std::vector<std::string> more,
                           const std::vector<std::string>& parts) {
    std::vector<std::string> words = {"validate",       artifact_, artifact_, "--data",
                                      at("rows.jsonl"), "--exit",  rule,      "-q"};
    words.insert(words.end(), more.begin(), more.end());
    expect_refused(quern(words), 2, parts);
  };
  refused("saturation:0.5", {}, {"are for decoders"});
  refused("fixed:2", {}, {"no exit head behind layer 2"});
  refused("margin:0.5", {"--exit-decay", "2"}, {"decays", "for decoders"});
  expect_refused(
      quern({"calibrate-exits", artifact_, "--data", at("rows.jsonl"), "--risk", "perplexity", "-q"}), 2,
      {"for decoders"});
  const ProgramResult none =
      quern({"convert", model("families/vit"), "-o", at("vit.quern"), "--exit-heads", "1"});
  EXPECT_NE(none.err.find("no exit heads were put in"), std::string::npos) << none.err;
}

}  // namespace
}  // namespace quern::test
