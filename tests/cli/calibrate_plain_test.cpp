// Calibration of graphs that are no decoders: an encoder on token ids, a perceptron on arrays.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "formats/artifact/artifact.h"
#include "formats/npy/npz.h"
#include "formats/onnx/export.h"
#include "ir/rewriter.h"
#include "ir/schema.h"
#include "tests/cli/quern_binary.h"

namespace quern::test {
namespace {

using nlohmann::json;

class CalibratePlain : public testing::Test {
 protected:
  std::string at(const std::string& name) const { return (dir_ / name).string(); }

  // Rows of token ids, from another seed other ones.
  void write_ids(const std::string& name, unsigned seed) const {
    uint32_t state = seed;
    std::string lines;
    for (int row = 0; row < 24; ++row) {
      lines += "{\"ids\": [1";
      for (int i = 0; i < 20; ++i) {
        state = state * 1664525 + 1013904223;
        lines += "," + std::to_string(2 + (state >> 16) % 50);
      }
      lines += "]}\n";
    }
    write_text(at(name), lines);
  }

  double sqnr(const std::string& original, const std::string& data, std::vector<std::string> options) const {
    options.insert(options.begin(), {"convert", original, "-o", at("x.quern"), "--quiet"});
    quern_json(options);
    const json found = quern_json({"validate", original, at("x.quern"), "--data", data, "--quiet"});
    return found.at("outputs").at(0).at("sqnr_db").get<double>();
  }

  TempDir dir_;
};

TEST_F(CalibratePlain, AnEncoderOnTokenIds) {
  const std::string model = source_path("tests/models/families/minilm.onnx").string();
  write_ids("seen.jsonl", 1);
  write_ids("unseen.jsonl", 2);
  const std::string seen = at("seen.jsonl"), unseen = at("unseen.jsonl");
  const double nearest = sqnr(model, unseen, {"--weights", "int3", "--group-size", "32"});
  EXPECT_GT(sqnr(model, unseen,
                 {"--weights", "int3", "--group-size", "32", "--method", "gptq", "--calibration-data", seen}),
            nearest + 0.5);
  const double weights = sqnr(model, unseen, {"--weights", "int8"});
  const double both = sqnr(model, unseen, {"--activations", "static", "--calibration-data", seen});
  EXPECT_LT(both, weights) << "activations are not rounded";
  EXPECT_GT(both, 20);
  // A table says as much as the data.
  quern_json({"calibrate", model, "--data", seen, "-o", at("table.json"), "--quiet"});
  EXPECT_DOUBLE_EQ(sqnr(model, unseen, {"--activations", "static", "--calibration", at("table.json")}), both);
  // Arrays do as well, and ids that the table lacks do not.
  write_text(at("bad.jsonl"), "{\"ids\": [1, 100000]}\n");
  expect_refused(quern({"calibrate", model, "--data", at("bad.jsonl"), "-o", at("t.json")}), 3,
                 {"token id 100000"});
}

// y = relu(x A) B, with inputs of at most 4 in magnitude.
void write_perceptron(const std::string& path) {
  Graph graph("perceptron");
  Rewriter rewriter(graph);
  const auto wave = [&](int64_t rows, int64_t columns, const char* name) {
    std::vector<float> numbers;
    for (int64_t i = 0; i < rows * columns; ++i) numbers.push_back(std::sin(1.3F * static_cast<float>(i)));
    return rewriter.add_constant(Tensor::from<float>({rows, columns}, std::span<const float>(numbers)), name);
  };
  Value* x = rewriter.add_input("x", {.dtype = DType::F32, .shape = SymShape{Dim::symbol("n"), 8}});
  Value* hidden = rewriter.add_node({.op = "MatMul", .inputs = {x, wave(8, 16, "A")}})->output();
  Value* active = rewriter.add_node({.op = "Relu", .inputs = {hidden}})->output();
  rewriter.add_output(rewriter.add_node({.op = "MatMul", .inputs = {active, wave(16, 4, "B")}})->output(),
                      "y");
  rewriter.set_opset("", 17);
  rewriter.commit();
  onnx_format::export_model(graph, path);
}

TEST_F(CalibratePlain, APerceptronOnArrays) {
  write_perceptron(at("m.onnx"));
  std::vector<float> numbers;
  for (int i = 0; i < 64 * 8; ++i) numbers.push_back(4 * std::sin(0.7F * static_cast<float>(i * i % 97)));
  const float most = std::abs(*std::max_element(numbers.begin(), numbers.end(),
                                                [](float a, float b) { return std::abs(a) < std::abs(b); }));
  npy::write_archive(at("x.npz"), {{"x", Tensor::from<float>({64, 8}, std::span<const float>(numbers))}});
  const std::vector<std::string> options = {"--activations", "static", "--calibration-data", at("x.npz")};
  EXPECT_GT(sqnr(at("m.onnx"), at("x.npz"), options), 30);
  artifact::Artifact file = artifact::Artifact::open(at("x.quern"));
  const auto graph = file.take_graph();
  int products = 0;
  for (const Node* node : graph->nodes()) {
    if (!node->is("Linear", kQuernDomain)) continue;
    ++products;
    if (node->input(0)->name() == "x") {
      EXPECT_FLOAT_EQ(node->float_attribute("activation_scale", 0), most / 127);
    }
    EXPECT_GT(node->float_attribute("activation_scale", 0), 0);
  }
  EXPECT_EQ(products, 2);
  // Of several rows, so many are drawn.
  const json drawn = quern_json(
      {"calibrate", at("m.onnx"), "--data", at("x.npz"), "--samples", "10", "-o", at("t.json"), "--quiet"});
  EXPECT_EQ(drawn.at("windows_seen"), 10);
  EXPECT_EQ(drawn.at("tensors"), 2);
}

TEST_F(CalibratePlain, ADecoderIsShownTokenIds) {
  npy::write_archive(at("x.npz"), {{"x", Tensor::zeros(DType::F32, {2, 8})}});
  expect_refused(quern({"calibrate", example("model.onnx"), "--data", at("x.npz"), "-o", at("t.json")}), 3,
                 {"a decoder is shown token ids"});
  expect_refused(quern({"convert", example("model.onnx"), "-o", at("m.quern"), "--method", "gptq",
                        "--calibration-data", at("x.npz")}),
                 3, {"a decoder is shown token ids"});
}

}  // namespace
}  // namespace quern::test
