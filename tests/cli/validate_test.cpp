#include <gtest/gtest.h>

#include "formats/artifact/artifact.h"
#include "formats/npy/npz.h"
#include "formats/onnx/export.h"
#include "ir/rewriter.h"
#include "tests/cli/quern_binary.h"
#include "tests/formats/onnx/onnx_text.h"

namespace quern::test {
namespace {

// An artifact and a short text, for all tests.
class ValidateCommand : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = std::make_unique<TempDir>();
    ASSERT_EQ(quern({"convert", example("model.onnx"), "--weights", "int4", "-o", path("m.quern"), "--quiet"})
                  .status,
              0);
    write_text(*shared_ / "text.txt", read_text(example("heldout.txt")).substr(0, 12000));
  }
  static void TearDownTestSuite() { shared_.reset(); }
  static std::string path(const std::string& name) { return (*shared_ / name).string(); }
  static std::vector<std::string> words(std::vector<std::string> more) {
    more.insert(more.begin(), {"validate", example("model.onnx"), path("m.quern"), "--no-speed", "--quiet"});
    return more;
  }
  static std::unique_ptr<TempDir> shared_;
};
std::unique_ptr<TempDir> ValidateCommand::shared_;

TEST_F(ValidateCommand, JsonHasTheDocumentedKeys) {
  const auto object =
      quern_json({"validate", example("model.onnx"), path("m.quern"), "--data", path("text.txt")});
  const double before = object.at("reference").at("perplexity");
  const double after = object.at("candidate").at("perplexity");
  EXPECT_GT(before, 20);
  EXPECT_LT(before, 80);
  EXPECT_NEAR(object.at("perplexity_increase"), after / before - 1, 1e-9);
  EXPECT_GT(object.at("kl").at("mean"), 0);
  EXPECT_GT(object.at("kl").at("p99"), object.at("kl").at("median"));
  EXPECT_GT(object.at("top1"), 0.8);
  EXPECT_GE(object.at("top5"), object.at("top1"));
  EXPECT_EQ(object.at("candidate").at("size_bytes"), std::filesystem::file_size(path("m.quern")));
  EXPECT_LT(object.at("candidate").at("bits_per_weight"), 5);
  EXPECT_NEAR(object.at("reference").at("bits_per_weight"), 32, 0.01);
  EXPECT_GT(object.at("candidate").at("decode_tokens_per_second"), 0);
  EXPECT_EQ(object.at("protocol").at("context"), 256);
  EXPECT_EQ(object.at("protocol").at("tokens_scored").get<int64_t>() % 256, 0);
  EXPECT_EQ(object.at("data").at("sha256").get<std::string>().size(), 64u);
  EXPECT_EQ(object.at("passed"), true);
  EXPECT_TRUE(object.at("warnings").empty()) << object.at("warnings");
}

TEST_F(ValidateCommand, ThresholdsDecideTheStatus) {
  const std::string text = path("text.txt");
  EXPECT_EQ(quern(words({"--data", text, "--max-ppl-increase", "50%", "--min-top1", "0.5", "--max-kl", "1"}))
                .status,
            0);
  EXPECT_EQ(quern(words({"--data", text, "--max-ppl-increase", "-90%"})).status, 1);
  EXPECT_EQ(quern(words({"--data", text, "--min-top1", "100%"})).status, 1);
  const ProgramResult result = quern(words({"--data", text, "--max-kl", "0.00001"}));
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.out.find("MISSED  mean KL divergence"), std::string::npos) << result.out;
  expect_refused(quern(words({"--data", text, "--max-accuracy-drop", "1%"})), 2,
                 {"--max-accuracy-drop does not apply"});
  expect_refused(quern(words({"--data", text, "--min-sqnr", "20"})), 2, {"--min-sqnr does not apply"});
}

TEST_F(ValidateCommand, TheProtocolCanBeSet) {
  const auto object =
      quern_json(words({"--data", path("text.txt"), "--context", "64", "--stride", "32", "--samples", "10"}));
  EXPECT_EQ(object.at("protocol").at("context"), 64);
  EXPECT_EQ(object.at("protocol").at("stride"), 32);
  EXPECT_EQ(object.at("protocol").at("windows"), 10);
  EXPECT_EQ(object.at("protocol").at("tokens_scored"), 64 + 9 * 32);
}

// opening/make_opening.py: by ONNX Runtime and another tokenizer's code.
TEST_F(ValidateCommand, EveryWindowBeginsWithWhatTheTokenizerPutsBeforeATextOfItsOwn) {
  const auto record = nlohmann::json::parse(read_text(source_path("tests/cli/opening/perplexity.json")));
  for (const auto& wanted : record.at("cases")) {
    auto tokenizer = nlohmann::ordered_json::parse(read_text(example("tokenizer.json")));
    tokenizer["post_processor"] = wanted.at("post_processor");
    write_text(*shared_ / "opening.json", tokenizer.dump());
    const auto object =
        quern_json(words({"--data", example("heldout.txt"), "--tokenizer", path("opening.json"), "--context",
                          record.at("context").dump(), "--stride", wanted.at("stride").dump(), "--samples",
                          record.at("windows").dump()}));
    const double perplexity = wanted.at("perplexity");
    EXPECT_NEAR(object.at("reference").at("perplexity"), perplexity, 2e-5 * perplexity) << wanted;
    EXPECT_EQ(object.at("protocol").at("tokens_scored"), wanted.at("scored")) << wanted;
    EXPECT_EQ(object.at("protocol").at("opening_tokens"), wanted.at("opening")) << wanted;
  }
}

TEST_F(ValidateCommand, AnArtifactOfTheSameNumbersIsTheSameModel) {
  ASSERT_EQ(
      quern({"convert", example("model.onnx"), "--weights", "fp32", "-o", path("fp32.quern"), "-q"}).status,
      0);
  const auto object = quern_json(
      {"validate", example("model.onnx"), path("fp32.quern"), "--data", path("text.txt"), "--no-speed"});
  EXPECT_EQ(object.at("kl").at("max"), 0);
  EXPECT_EQ(object.at("top1"), 1);
  EXPECT_EQ(object.at("perplexity_increase"), 0);
}

TEST_F(ValidateCommand, WritesAReport) {
  const std::string report = path("report.html");
  const ProgramResult result = quern(
      {"validate", example("model.onnx"), path("m.quern"), "--data", path("text.txt"), "--report", report});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("The report is " + report), std::string::npos) << result.out;
  const std::string page = read_text(report);
  EXPECT_TRUE(page.starts_with("<!doctype html>"));
  for (const char* part : {"<svg", "KL divergence", "quern validate", "quern convert", "recipe.json",
                           "embedding and head (tied)"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(page.find("http"), std::string::npos);
}

TEST_F(ValidateCommand, KeepsItsFiguresInTheArtifact) {
  std::filesystem::copy_file(path("m.quern"), path("recorded.quern"),
                             std::filesystem::copy_options::overwrite_existing);
  const auto object = quern_json({"validate", example("model.onnx"), path("recorded.quern"), "--data",
                                  path("text.txt"), "--no-speed", "--record"});
  const auto artifact = artifact::Artifact::open(path("recorded.quern"));
  const auto recorded = nlohmann::json::parse(artifact.attachment(artifact::kValidation).value());
  EXPECT_EQ(recorded.at("kl"), object.at("kl"));
  expect_refused(
      quern({"validate", path("m.quern"), example("model.onnx"), "--data", path("text.txt"), "--record"}), 2,
      {"--record is for artifacts"});
}

TEST_F(ValidateCommand, WarnsOfAnotherOriginal) {
  std::string other = read_text(example("model.onnx"));
  other[other.size() / 2] ^= 1;
  write_text(*shared_ / "other.onnx", other);
  const auto object = quern_json({"validate", path("other.onnx"), path("m.quern"), "--data", path("text.txt"),
                                  "--no-speed", "--samples", "1"});
  ASSERT_FALSE(object.at("warnings").empty());
  EXPECT_NE(object.at("warnings").at(0).get<std::string>().find("was made from 'model.onnx'"),
            std::string::npos);
}

TEST_F(ValidateCommand, RefusesBadData) {
  const auto refused = [](const std::string& name, const std::string& content, int status,
                          const std::vector<std::string>& parts) {
    write_text(*shared_ / name, content);
    expect_refused(quern(words({"--data", path(name)})), status, parts);
  };
  refused("empty.txt", "", 3, {"empty.txt", "is empty"});
  refused("latin1.txt", "caf\xE9", 3, {"latin1.txt", "UTF-8"});
  refused("one.txt", "a", 3, {"one.txt", "too short"});
  refused("ids.jsonl", "{\"ids\": [1, 2, 5000]}\n", 3, {"line 1", "5000", "4096"});
  refused("bad.jsonl", "{\"ids\": [1, 2]}\n{]\n", 3, {"line 2", "bad.jsonl"});
  expect_refused(quern(words({"--data", path("absent.txt")})), 5, {"absent.txt"});
  expect_refused(quern(words({})), 2, {"missing --data"});
  expect_refused(quern(words({"--data", path("text.txt"), "--context", "8", "--stride", "9"})), 2,
                 {"stride"});
}

TEST(ValidateArrays, ComparesGraphsOfAnyKind) {
  const TempDir folder;
  const auto write = [&](const std::string& name, float scale) {
    Graph graph("scaled");
    Rewriter rewriter(graph);
    Value* x = rewriter.add_input("x", {.dtype = DType::F32, .shape = SymShape{Dim::symbol("n"), 2}});
    Node* y = rewriter.add_node(
        {.op = "Mul", .opset = 14, .inputs = {x, rewriter.add_constant(Tensor::scalar(scale), "s")}});
    rewriter.add_output(y->output(), "y");
    rewriter.set_opset("", 17);
    rewriter.commit();
    onnx_format::export_model(graph, folder / name);
    return (folder / name).string();
  };
  const std::string a = write("a.onnx", 1);
  const std::string b = write("b.onnx", 1.01F);
  npy::write_archive(folder / "x.npz", {{"x", Tensor::from<float>({3, 2}, {1, 2, 3, 4, 6, 5})},
                                        {"labels", Tensor::from<int64_t>({3}, {1, 1, 1})}});
  const std::string data = (folder / "x.npz").string();
  const auto object = quern_json({"validate", a, b, "--data", data, "--min-sqnr", "39", "--min-top1", "1"});
  EXPECT_NEAR(object.at("outputs").at(0).at("sqnr_db"), 40, 0.01);
  EXPECT_NEAR(object.at("outputs").at(0).at("max_abs_error"), 0.06, 1e-6);
  EXPECT_NEAR(object.at("candidate").at("accuracy"), 2.0 / 3, 1e-12);
  EXPECT_EQ(object.at("top1"), 1);
  EXPECT_EQ(
      quern({"validate", a, b, "--data", data, "--min-sqnr", "41", "--report", (folder / "r.html").string()})
          .status,
      1);
  EXPECT_NE(read_text(folder / "r.html").find("SQNR"), std::string::npos);
  expect_refused(quern({"validate", a, b, "--data", data, "--max-ppl-increase", "1%"}), 2,
                 {"does not apply"});
  expect_refused(quern({"validate", a, b, "--data", example("heldout.txt")}), 3, {"no tokenizer"});
}

// Which of three classes most tokens of a row speak for; token 5 speaks for `class_of_5`.
std::string write_classifier(const std::filesystem::path& path, int class_of_5) {
  std::string table;
  for (int token = 0; token < 6; ++token) {
    for (int c = 0; c < 3; ++c) {
      const bool speaks = c == (token == 5 ? class_of_5 : token % 3);
      table += std::string(table.empty() ? "" : ", ") + (speaks ? "5.0" : "0.5");
    }
  }
  const auto model = onnx_format::test::parse_text(
      "g (int64[b, s] input_ids) => (float[b, 3] logits) <float[6, 3] table = {" + table +
      "}> { e = Gather(table, input_ids) logits = ReduceMean<axes = [1], keepdims = 0>(e) }");
  write_text(path, model.SerializeAsString());
  return path.string();
}

TEST(ValidateRows, ClassifiersAreJudgedByTheirLabels) {
  const TempDir folder;
  const std::string a = write_classifier(folder / "a.onnx", 2);
  const std::string b = write_classifier(folder / "b.onnx", 0);
  std::string rows;
  for (int token = 0; token < 6; ++token) {
    const std::string id = std::to_string(token);
    rows +=
        "{\"ids\": [" + id + ", " + id + ", 0, " + id + "], \"label\": " + std::to_string(token % 3) + "}\n";
  }
  write_text(folder / "rows.jsonl", rows);
  const std::string data = (folder / "rows.jsonl").string();
  const auto object = quern_json({"validate", a, b, "--data", data, "--max-accuracy-drop", "20%"});
  EXPECT_EQ(object.at("reference").at("accuracy"), 1);
  EXPECT_NEAR(object.at("candidate").at("accuracy"), 5.0 / 6, 1e-12);
  EXPECT_NEAR(object.at("top1"), 5.0 / 6, 1e-12);
  EXPECT_GT(object.at("kl").at("max"), 0.1);
  EXPECT_EQ(object.at("protocol").at("rows"), 6);
  EXPECT_FALSE(object.at("reference").contains("perplexity"));
  EXPECT_EQ(quern({"validate", a, b, "--data", data, "--max-accuracy-drop", "10%"}).status, 1);
  expect_refused(quern({"validate", a, b, "--data", data, "--max-ppl-increase", "1%"}), 2,
                 {"does not apply"});

  const std::string artifact = (folder / "a.quern").string();
  ASSERT_EQ(quern({"convert", a, "-o", artifact, "--weights", "fp32", "-q"}).status, 0);
  EXPECT_EQ(quern_json({"validate", a, artifact, "--data", data}).at("top1"), 1);
}

}  // namespace
}  // namespace quern::test
