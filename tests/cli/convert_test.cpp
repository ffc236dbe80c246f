#include <gtest/gtest.h>

#include "formats/artifact/artifact.h"
#include "formats/onnx/export.h"
#include "formats/onnx/import.h"
#include "ir/rewriter.h"
#include "tests/cli/quern_binary.h"

namespace quern::test {
namespace {

class ConvertCommand : public testing::Test {
 protected:
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  ProgramResult convert(std::vector<std::string> more, const ProgramRun& how = {}) const {
    more.insert(more.begin(), {"convert", example("model.onnx"), "-o", at("m.quern")});
    return quern(more, how);
  }
  TempDir folder_;
};

TEST_F(ConvertCommand, SaysWhatItDid) {
  const ProgramResult result = convert({});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.err, "");
  for (const char* part : {"Llama-style decoder, 8 layers", "19.1 MB -> ", "bits per weight",
                           "stayed plain     nothing", "int8 symmetric per channel", "kept once"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  }
  EXPECT_EQ(folder_.names(), std::vector<std::string>{"m.quern"});
  EXPECT_EQ(convert({"--quiet"}).out, "");
}

TEST_F(ConvertCommand, JsonHasTheDocumentedKeys) {
  const auto object = quern_json({"convert", example(""), "-o", at("m.quern"), "--weights", "int4"});
  EXPECT_EQ(object.at("decoder"), true);
  EXPECT_EQ(object.at("output"), at("m.quern"));
  EXPECT_EQ(object.at("size_bytes"), std::filesystem::file_size(at("m.quern")));
  EXPECT_EQ(object.at("source_bytes"), std::filesystem::file_size(example("model.onnx")));
  EXPECT_GT(object.at("bits_per_weight"), 4.0);
  EXPECT_LT(object.at("bits_per_weight"), 5.0);
  EXPECT_TRUE(object.at("plain_operators").empty());
  EXPECT_EQ(object.at("weights").size(), 57u);
  EXPECT_EQ(object.at("weights").at(0).at("format"), "int4 symmetric per group of 32");
  EXPECT_TRUE(object.at("pipeline").at("passes").is_array());
}

TEST_F(ConvertCommand, ARecipeIsWhatTheOptionsStandFor) {
  const std::vector<std::string> options = {"--weights", "int4",       "--asymmetric",      "--group-size",
                                            "64",        "--override", "lm_head|embed=int8"};
  std::vector<std::string> print = options;
  print.emplace_back("--print-recipe");
  const ProgramResult recipe = convert(print);
  EXPECT_EQ(recipe.status, 0) << recipe.err;
  EXPECT_TRUE(folder_.names().empty());
  write_text(folder_ / "recipe.json", recipe.out);

  ASSERT_EQ(convert(options).status, 0);
  const std::string by_options = read_text(folder_ / "m.quern");
  ASSERT_EQ(convert({"--recipe", at("recipe.json")}).status, 0);
  EXPECT_EQ(read_text(folder_ / "m.quern"), by_options);
}

// A file that another quantizer wrote keeps its weights, and its products may become faster.
TEST_F(ConvertCommand, ActivationsOfKeptWeightsCanBeRounded) {
  const auto ids = [&](const std::string& artifact) {
    return quern_json({"generate", at(artifact), "--ids", "1,20,300", "-n", "24"}).at("ids");
  };
  ASSERT_EQ(convert({"--weights", "int8", "--activations", "dynamic-token"}).status, 0);
  const auto direct = ids("m.quern");
  ASSERT_EQ(convert({"--weights", "int8"}).status, 0);
  ASSERT_EQ(quern({"export", at("m.quern"), "-o", at("q.onnx"), "--style", "qdq"}).status, 0);
  for (const std::string activations : {"none", "dynamic-token"}) {
    const ProgramResult result =
        quern({"convert", at("q.onnx"), "-o", at("k.quern"), "--weights", "keep", "--activations",
               activations, "--tokenizer", example("tokenizer.json")});
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(quern_json({"inspect", at("k.quern")}).at("activations"),
              nlohmann::json::array({activations == "none" ? "none" : "int8-token"}));
  }
  EXPECT_EQ(ids("k.quern"), direct);
  expect_refused(convert({"--weights", "keep", "--activations", "dynamic"}), 2, {"integer weights"});
}

TEST_F(ConvertCommand, OverridesSpeakOfTheModelsOwnNames) {
  const auto object = quern_json({"convert", example("model.onnx"), "-o", at("m.quern"), "--override",
                                  "layers\\.[07]/mlp/down_proj=fp16"});
  int halves = 0;
  for (const auto& weight : object.at("weights")) halves += weight.at("format") == "f16" ? 1 : 0;
  EXPECT_EQ(halves, 2);
}

TEST_F(ConvertCommand, RefusesOverridesThatSayNothing) {
  expect_refused(convert({"--override", "mlp.dwon_proj=int4"}), 2,
                 {"mlp.dwon_proj", "did you mean 'mlp.down_proj'"});
  expect_refused(convert({"--override", "down_proj"}), 2, {"REGEX=SETTINGS"});
  expect_refused(convert({"--override", "(=int4"}), 2, {"("});
  expect_refused(convert({"--override", "down_proj=int5"}), 2,
                 {"'int5' is no setting", "int4", "group-size:N"});
  expect_refused(convert({"--override", "down_proj=grup-size:64"}), 2, {"grup-size", "group-size"});
  EXPECT_TRUE(folder_.names().empty());
}

TEST_F(ConvertCommand, RefusesOptionsThatContradictEachOther) {
  expect_refused(convert({"--symmetric", "--asymmetric"}), 2, {"contradict"});
  expect_refused(convert({"--weights", "fp16", "--asymmetric"}), 2,
                 {"--asymmetric is for weights with scales"});
  expect_refused(convert({"--granularity", "channel", "--group-size", "64"}), 2, {"--group-size"});
  write_text(folder_ / "r.json", "{}");
  expect_refused(convert({"--recipe", at("r.json"), "--weights", "int4"}), 2, {"--recipe and --weights"});
  expect_refused(convert({"--recipe", at("r.json")}), 2, {"r.json"});
  expect_refused(convert({"--recipe", at("absent.json")}), 5, {"absent.json"});
  expect_refused(quern({"convert", example("model.onnx")}), 2, {"missing --output"});
}

TEST_F(ConvertCommand, RefusesCalibrationThatNothingAsksFor) {
  write_text(folder_ / "text.txt", "once upon a time");
  expect_refused(convert({"--calibration-data", at("text.txt")}), 2,
                 {"--calibration-data changes nothing", "rtn"});
  expect_refused(convert({"--calibration", at("absent.json")}), 2, {"--calibration changes nothing"});
  expect_refused(convert({"--method", "gptq", "--calibration-samples", "8"}), 2,
                 {"--calibration-samples is for"});
  expect_refused(convert({"--method", "lsq", "--damping", "0.1"}), 2, {"--damping is for --method gptq"});
  expect_refused(
      convert({"--override", "down_proj=int4,method:gptq", "--calibration-data", at("absent.txt")}), 5,
      {"absent.txt"});
}

// Before a model is read that may take minutes to.
TEST_F(ConvertCommand, AsksForCalibrationAtOnce) {
  const auto refused = [&](std::vector<std::string> options, const std::string& part) {
    options.insert(options.begin(), {"convert", at("absent.onnx"), "-o", at("m.quern")});
    expect_refused(quern(options), 2, {part});
  };
  refused({"--method", "gptq"}, "gptq needs data");
  refused({"--override", "down_proj=method:gptq"}, "gptq needs data");
  refused({"--method", "awq"}, "need to know activations");
  refused({"--activations", "static"}, "need their ranges");
}

TEST_F(ConvertCommand, DumpsAndExplainsPassesOfTheRecipe) {
  const ProgramResult result = convert({"--dump-after", "fuse-linear", "--explain-pass", "to-decoder"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NO_THROW(onnx_format::import_model(folder_ / "m.quern.fuse-linear.onnx"));
  EXPECT_NE(result.err.find("to-decoder: nothing was left over"), std::string::npos) << result.err;
  expect_refused(convert({"--dump-after", "fuse-linaer"}), 2,
                 {"no pass 'fuse-linaer'; did you mean 'fuse-linear'?"});
  expect_refused(convert({"--explain-pass", "to-decodr"}), 2, {"did you mean 'to-decoder'?"});
}

TEST_F(ConvertCommand, CarriesWhatGenerationNeeds) {
  std::filesystem::copy_file(example("model.onnx"), folder_ / "model.onnx");
  write_text(folder_ / "config.json", R"({"eos_token_id": 7, "max_position_embeddings": 300})");
  ASSERT_EQ(
      quern({"convert", at("model.onnx"), "-o", at("out.quern"), "--tokenizer", example("tokenizer.json")})
          .status,
      0);
  const auto object = quern_json({"inspect", at("out.quern")});
  EXPECT_EQ(object.at("decoder").at("context"), 300);
  EXPECT_EQ(object.at("tokenizer").at("tokens"), 4096);
  const auto artifact = artifact::Artifact::open(folder_ / "out.quern");
  const auto generation = nlohmann::json::parse(artifact.attachment(artifact::kGeneration).value());
  EXPECT_EQ(generation.at("eos_ids"), std::vector<int64_t>{7});
  ASSERT_EQ(artifact.sources().size(), 1u);
  EXPECT_EQ(artifact.sources()[0].name, "model.onnx");
}

TEST_F(ConvertCommand, RefusesATokenizerOfAnotherVocabulary) {
  auto json = nlohmann::json::parse(read_text(example("tokenizer.json")));
  json["added_tokens"].push_back({{"id", 4096},
                                  {"content", "<|extra|>"},
                                  {"single_word", false},
                                  {"lstrip", false},
                                  {"rstrip", false},
                                  {"normalized", false},
                                  {"special", true}});
  write_text(folder_ / "tokenizer.json", json.dump());
  expect_refused(convert({"--tokenizer", at("tokenizer.json")}), 3, {"4097 tokens", "4096"});
  EXPECT_EQ(folder_.names(), std::vector<std::string>{"tokenizer.json"});
}

TEST_F(ConvertCommand, RefusesWhatItCannotStartFrom) {
  ASSERT_EQ(convert({}).status, 0);
  expect_refused(quern({"convert", at("m.quern"), "-o", at("n.quern")}), 2, {"is an artifact already"});
  std::filesystem::copy_file(example("model.onnx"), folder_ / "model.onnx");
  expect_refused(quern({"convert", at("model.onnx"), "-o", at("model.onnx")}), 2,
                 {"is a file of the model itself"});
  expect_refused(convert({"-o", "x"}), 2, {"given twice"});
  expect_refused(quern({"convert", example("model.onnx"), "-o", "/nowhere/m.quern"}), 5,
                 {"/nowhere/m.quern"});
}

// y = max(x w, 0): nothing that could be a decoder.
TEST_F(ConvertCommand, APlainGraphStaysOne) {
  Graph graph("plain");
  Rewriter rewriter(graph);
  Value* x = rewriter.add_input("x", {.dtype = DType::F32, .shape = SymShape{Dim::symbol("n"), 32}});
  Value* w = rewriter.add_constant(Tensor::zeros(DType::F32, {32, 16}), "w");
  Node* product = rewriter.add_node({.op = "MatMul", .opset = 13, .inputs = {x, w}});
  Node* positive = rewriter.add_node({.op = "Relu", .opset = 14, .inputs = {product->output()}});
  rewriter.add_output(positive->output(), "y");
  rewriter.set_opset("", 17);
  rewriter.commit();
  onnx_format::export_model(graph, folder_ / "plain.onnx");

  const ProgramResult result = quern({"convert", at("plain.onnx"), "-o", at("plain.quern")});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.err.find("warning: no decoder was recognised"), std::string::npos) << result.err;
  EXPECT_EQ(quern_json({"inspect", at("plain.quern")}).at("recognised"), "none");
  expect_refused(quern({"generate", at("plain.quern"), "--ids", "1"}), 4, {"is no decoder", "quern inspect"});
}

TEST_F(ConvertCommand, AFullDiskLeavesNothing) {
  expect_refused(convert({}, {.largest_file = 1 << 20}), 5, {"m.quern"});
  EXPECT_TRUE(folder_.names().empty());
}

TEST_F(ConvertCommand, AnInterruptedConversionLeavesNothingOrAllOfIt) {
  int interrupted = 0;
  for (const int milliseconds : {1, 20, 40, 60, 80, 120, 160, 240, 320}) {
    const ProgramResult result = convert({}, {.interrupt_after = std::chrono::milliseconds(milliseconds)});
    if (result.status == 0) {
      EXPECT_EQ(folder_.names(), std::vector<std::string>{"m.quern"});
      std::filesystem::remove(folder_ / "m.quern");
      continue;
    }
    EXPECT_EQ(result.status, 130) << result.err;
    ++interrupted;
    if (folder_.names().empty()) continue;
    // The interrupt came between the last step, which puts the whole artifact in its place, and the end.
    EXPECT_EQ(folder_.names(), std::vector<std::string>{"m.quern"}) << milliseconds;
    EXPECT_EQ(quern({"inspect", at("m.quern"), "--verify"}).status, 0) << milliseconds;
    std::filesystem::remove(folder_ / "m.quern");
  }
  EXPECT_GT(interrupted, 0);
}

TEST_F(ConvertCommand, DamagedArtifactsAreRefused) {
  ASSERT_EQ(convert({}).status, 0);
  const std::string whole = read_text(folder_ / "m.quern");
  for (const double share : {0.0, 0.00001, 0.5, 0.9999}) {
    write_text(folder_ / "cut.quern",
               whole.substr(0, static_cast<size_t>(share * static_cast<double>(whole.size()))));
    expect_refused(quern({"inspect", at("cut.quern")}), 3, {"cut.quern"});
    expect_refused(quern({"generate", at("cut.quern"), "--ids", "1"}), 3, {"cut.quern"});
  }
  std::string newer = whole;
  newer[8] = 99;
  write_text(folder_ / "newer.quern", newer);
  const ProgramResult result = quern({"inspect", at("newer.quern")});
  EXPECT_TRUE(result.status == 3 || result.status == 4) << result.err;
  EXPECT_EQ(result.out, "");
}

}  // namespace
}  // namespace quern::test
