#include <gtest/gtest.h>

#include "formats/npy/npy.h"
#include "formats/npy/npz.h"
#include "formats/onnx/export.h"
#include "formats/onnx/import.h"
#include "ir/rewriter.h"
#include "ir/schema.h"
#include "tests/cli/quern_binary.h"

namespace quern::test {
namespace {

using TensorList = std::map<std::string, Tensor>;

// scaled/sum = (a + b) * 2, difference = a - b, for any number of rows of two.
void write_model(const std::filesystem::path& path) {
  Graph graph("sums");
  Rewriter rewriter(graph);
  const ValueType type{.dtype = DType::F32, .shape = SymShape{Dim::symbol("n"), 2}};
  Value* a = rewriter.add_input("a", type);
  Value* b = rewriter.add_input("b", type);
  Value* two = rewriter.add_constant(Tensor::scalar(2.0F), "two");
  Node* sum = rewriter.add_node({.op = "Add", .opset = 14, .inputs = {a, b}});
  Node* scaled = rewriter.add_node({.op = "Mul", .opset = 14, .inputs = {sum->output(), two}});
  Node* difference = rewriter.add_node({.op = "Sub", .opset = 14, .inputs = {a, b}});
  rewriter.add_output(scaled->output(), "scaled/sum");
  rewriter.add_output(difference->output(), "difference");
  rewriter.set_opset("", 17);
  rewriter.commit();
  onnx_format::export_model(graph, path);
}

class RunCommand : public testing::Test {
 protected:
  RunCommand() {
    write_model(folder_ / "m.onnx");
    npy::write(folder_ / "a.npy", Tensor::from<float>({1, 2}, {1, 2}));
    npy::write(folder_ / "b.npy", Tensor::from<float>({1, 2}, {3, 5}));
  }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  ProgramResult run(std::vector<std::string> more) const {
    more.insert(more.begin(), {"run", at("m.onnx")});
    return quern(more);
  }

  TempDir folder_;
};

TEST_F(RunCommand, WritesEveryOutput) {
  const auto object = quern_json(
      {"run", at("m.onnx"), "-i", "a=" + at("a.npy"), "--input", "b=" + at("b.npy"), "-o", at("out/deep")});
  ASSERT_EQ(object.at("outputs").size(), 2u);
  EXPECT_EQ(object.at("outputs").at(0).at("name"), "scaled/sum");
  EXPECT_EQ(object.at("outputs").at(0).at("most"), 14);
  EXPECT_EQ(object.at("outputs").at(0).at("shape"), nlohmann::json({1, 2}));
  EXPECT_TRUE(
      identical(npy::read(folder_ / "out/deep/scaled_sum.npy"), Tensor::from<float>({1, 2}, {8, 14})));
  EXPECT_TRUE(
      identical(npy::read(folder_ / "out/deep/difference.npy"), Tensor::from<float>({1, 2}, {-2, -3})));
}

TEST_F(RunCommand, TakesAnArchive) {
  npy::write_archive(folder_ / "in.npz", TensorList{{"a", Tensor::from<float>({1, 2}, {1, 2})},
                                                    {"b", Tensor::from<float>({1, 2}, {0, 0})}});
  const ProgramResult result = run({"--inputs", at("in.npz"), "--reference", "--repeat", "2"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("difference  f32 [1, 2]"), std::string::npos) << result.out;
  EXPECT_EQ(run({"--inputs", at("in.npz"), "--quiet"}).err, "");
}

TEST_F(RunCommand, RefusesWrongInputs) {
  const std::string a = "a=" + at("a.npy");
  const std::string b = "b=" + at("b.npy");
  expect_refused(run({}), 2, {"input 'a' is missing", "'b' (f32 [n, 2])"});
  expect_refused(run({"-i", a}), 2, {"input 'b' is missing"});
  expect_refused(run({"-i", a, "-i", a}), 2, {"'a' is given twice"});
  expect_refused(run({"-i", at("a.npy")}), 2, {"NAME=FILE.npy"});
  expect_refused(run({"-i", "bb=" + at("b.npy")}), 2, {"no input 'bb'", "did you mean 'b'?"});
  npy::write(folder_ / "long.npy", Tensor::zeros(DType::F32, {1, 3}));
  expect_refused(run({"-i", a, "-i", "b=" + at("long.npy")}), 3, {"'b'"});
  npy::write(folder_ / "int.npy", Tensor::zeros(DType::I64, {1, 2}));
  expect_refused(run({"-i", a, "-i", "b=" + at("int.npy")}), 3, {"'b'", "i64"});
  expect_refused(run({"-i", a, "-i", "b=" + at("absent.npy")}), 5, {"absent.npy"});
  write_text(folder_ / "bad.npy", "not an array");
  expect_refused(run({"-i", a, "-i", "b=" + at("bad.npy")}), 3, {"bad.npy"});
  expect_refused(run({"-i", a, "-i", b, "-o", at("m.onnx") + "/x"}), 5, {"cannot make the folder"});
}

TEST_F(RunCommand, OpensTheOneModelOfAFolder) {
  EXPECT_EQ(
      quern({"run", folder_.path().string(), "-i", "a=" + at("a.npy"), "-i", "b=" + at("b.npy")}).status, 0);
  write_model(folder_ / "n.onnx");
  write_model(folder_ / "k.onnx");
  std::filesystem::remove(folder_ / "m.onnx");
  expect_refused(quern({"run", folder_.path().string()}), 2, {"several models", "k.onnx, n.onnx"});
  const TempDir empty;
  expect_refused(quern({"run", empty.path().string()}), 5, {"holds no model"});
}

TEST_F(RunCommand, ExportWritesAModelThatIsTheSame) {
  const auto object = quern_json({"export", at("m.onnx"), "-o", at("copy.onnx")});
  EXPECT_EQ(object.at("files"), nlohmann::json({at("copy.onnx")}));
  const auto original = onnx_format::import_model(folder_ / "m.onnx");
  const auto copy = onnx_format::import_model(folder_ / "copy.onnx");
  EXPECT_EQ(to_text(*original.graph), to_text(*copy.graph));
  expect_refused(quern({"export", at("m.onnx")}), 2, {"missing --output"});
}

TEST_F(RunCommand, ExportPutsLargeWeightsBeside) {
  const auto object =
      quern_json({"export", example("model.onnx"), "-o", at("big.onnx"), "--external-over", "1"});
  EXPECT_EQ(object.at("files"), nlohmann::json({at("big.onnx"), at("big.onnx.data")}));
}

// Without options an artifact becomes what other runtimes read, its weights as they are.
TEST(ExportOfArtifacts, KeepsWeightsWithoutOperatorsOfQuern) {
  const TempDir folder;
  const std::string artifact = (folder / "m.quern").string();
  const std::string model = (folder / "m.onnx").string();
  for (const auto& [weights, style] : {std::pair{"fp32", "plain"}, {"int8", "nbits"}, {"fp8-e4m3", "qdq"}}) {
    SCOPED_TRACE(weights);
    ASSERT_EQ(quern({"convert", example("model.onnx"), "-o", artifact, "-q", "--weights", weights}).status,
              0);
    EXPECT_EQ(quern_json({"export", artifact, "-o", model}).at("style"), style);
    const auto imported = onnx_format::import_model(model);
    for (const Node* node : imported.graph->nodes())
      EXPECT_NE(node->domain(), kQuernDomain) << describe(*node);
    EXPECT_EQ(quern_json({"generate", model, "--ids", "1,2,3", "-n", "8"}).at("ids"),
              quern_json({"generate", artifact, "--ids", "1,2,3", "-n", "8"}).at("ids"));
  }
  expect_refused(quern({"export", artifact, "-o", model, "--style", "as-is", "--operators", "onnx"}), 2,
                 {"--operators"});
  expect_refused(quern({"export", artifact, "-o", model, "--style", "plain", "--accuracy-level", "4"}), 2,
                 {"--accuracy-level", "nbits"});
}

TEST(ExportOfArtifacts, SaysWhatItLeavesOut) {
  const TempDir folder;
  const std::string artifact = (folder / "m.quern").string();
  ASSERT_EQ(quern({"convert", example("model.onnx"), "-o", artifact, "-q", "--activations", "dynamic-token",
                   "--kv", "int8"})
                .status,
            0);
  const auto facts = quern_json({"inspect", artifact});
  EXPECT_EQ(facts.at("kv"), "i8");
  EXPECT_NE(facts.at("activations").dump().find("token"), std::string::npos) << facts.at("activations");
  EXPECT_NE(quern({"inspect", artifact, "--recipe"}).out.find("quantize-weights"), std::string::npos);
  const auto notes = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"export", artifact, "-o", (folder / "m.onnx").string()});
    return quern_json(more).at("notes").dump();
  };
  const std::string fused = notes({});
  EXPECT_NE(fused.find("padded on the right"), std::string::npos) << fused;
  EXPECT_NE(fused.find("--style qoperator rounds them"), std::string::npos) << fused;
  EXPECT_NE(fused.find("keys and values are floats"), std::string::npos) << fused;
  const std::string plain = notes({"--style", "qoperator", "--operators", "onnx"});
  EXPECT_EQ(plain.find("padded"), std::string::npos) << plain;
  EXPECT_EQ(plain.find("rounds them"), std::string::npos) << plain;
}

TEST(RunOfArtifacts, SendsDecodersToGenerate) {
  const TempDir folder;
  const std::string artifact = (folder / "m.quern").string();
  ASSERT_EQ(quern({"convert", example("model.onnx"), "-o", artifact, "-q"}).status, 0);
  expect_refused(quern({"run", artifact, "-i", "ids=x.npy"}), 4, {"m.quern", "use quern generate"});
}

}  // namespace
}  // namespace quern::test
