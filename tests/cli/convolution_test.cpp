// A convolutional network from ONNX to an artifact whose convolutions are in codes (models/cnn/make_cnn.py).
#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>

#include <fstream>

#include "formats/artifact/artifact.h"
#include "formats/npy/npy.h"
#include "formats/npy/npz.h"
#include "ir/products.h"
#include "runtime/interpreter.h"
#include "tests/cli/quern_binary.h"
#include "tests/support/temp_dir.h"

namespace quern::test {
namespace {

using nlohmann::json;

class Convolutions : public testing::Test {
 protected:
  static std::string model(const char* name) { return source_path("tests/models/cnn") / name; }
  std::string at(const std::string& name) const { return (dir_ / name).string(); }

  void convert(std::vector<std::string> options, const std::string& to = "x.quern") const {
    options.insert(options.begin(), {"convert", model("cnn.onnx"), "-o", at(to), "--quiet"});
    quern_json(options);
  }
  json compared(const std::string& data, const std::string& with = "x.quern") const {
    return quern_json({"validate", model("cnn.onnx"), at(with), "--data", data, "--quiet"});
  }
  double sqnr(const std::vector<std::string>& options) const {
    convert(options);
    return compared(model("unseen.npz")).at("outputs").at(0).at("sqnr_db").get<double>();
  }
  std::vector<std::string> calibrated(std::vector<std::string> options) const {
    options.insert(options.end(), {"--calibration-data", model("seen.npz")});
    return options;
  }
  std::shared_ptr<Graph> graph() const {
    artifact::Artifact file = artifact::Artifact::open(at("x.quern"));
    return file.take_graph();
  }

  TempDir dir_;
};

TEST_F(Convolutions, ComputeWhatWasRecorded) {
  const Tensor image = npy::Archive::open(model("unseen.npz")).read("image");
  const Tensor expected = npy::read(model("unseen_logits.npy"));
  const auto expect_close = [&](double tolerance) {
    const auto graph = this->graph();
    const std::string name = graph->outputs().front().name;
    const Tensor got = runtime::Interpreter(*graph).run({{"image", image}}).at(name).dense();
    ASSERT_EQ(got.shape(), expected.shape());
    double most = 0;
    for (int64_t i = 0; i < expected.size(); ++i) most = std::max(most, std::abs(expected.at(i)));
    for (int64_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(got.at(i), expected.at(i), tolerance * most) << i;
  };
  convert({"--weights", "fp32"});
  expect_close(1e-5);
  convert({"--weights", "fp16"});
  expect_close(2e-3);
  convert({"--weights", "int8"});
  expect_close(2e-2);
  convert({"--weights", "int8", "--activations", "static", "--calibration-data", model("unseen.npz")});
  expect_close(5e-2);
}

TEST_F(Convolutions, NormalizationsAreFoldedAndWeightsInCodes) {
  convert(calibrated({"--activations", "static"}));
  int products = 0;
  const auto graph = this->graph();
  for (const Node* node : graph->nodes()) {
    EXPECT_NE(node->op(), "BatchNormalization");
    EXPECT_NE(node->op(), "Conv");
    if (!is_product(*node)) continue;
    ++products;
    const Value* weight = node->input(1);
    EXPECT_TRUE(weight->quantized() || (weight->packed() && weight->packed()->spec().is_quantized()));
    // Depthwise ones are not packed: their rows are shorter than a tile.
    EXPECT_EQ(weight->packed() == nullptr, node->int_attribute("group", 1) > 1);
    // What a Relu or a Clip from 0 gives takes all 256 codes.
    const bool positive =
        node->input(0)->name() == "image" ||
        (node->input(0)->producer() && !node->input(0)->producer()->is("Linear", kQuernDomain));
    EXPECT_EQ(node->int_attribute("activation_low", -1), positive ? 0 : -127) << node->name();
  }
  EXPECT_EQ(products, 9);
  const json facts = quern_json({"inspect", at("x.quern")});
  EXPECT_EQ(facts.at("groups").at(0).at("name"), "weights");
  EXPECT_TRUE(facts.at("groups").at(0).at("formats").contains("int8 symmetric per channel")) << facts;
}

TEST_F(Convolutions, CostWhatTheirFormatsCost) {
  const double int8 = sqnr({"--weights", "int8"});
  EXPECT_GT(int8, 32);
  EXPECT_GT(int8, sqnr({"--weights", "int8", "--granularity", "tensor"}));
  const double all_codes = sqnr(calibrated({"--activations", "static"}));
  EXPECT_GT(all_codes, 20);
  EXPECT_LT(all_codes, int8);
  // Half of symmetric codes are never used behind a Relu.
  const auto on_its_own = [&](std::vector<std::string> options) {
    options.insert(options.end(), {"--activations", "static", "--calibration-data", model("unseen.npz")});
    return sqnr(options);
  };
  EXPECT_GT(on_its_own({}), on_its_own({"--activation-codes", "int8"}) + 1);
  EXPECT_GT(sqnr({"--activations", "dynamic"}), 25);
  EXPECT_GT(sqnr({"--activations", "dynamic-tensor"}), 27);
  const double int4 = sqnr({"--weights", "int4", "--asymmetric"});
  for (const char* method : {"lsq", "gptq"})
    EXPECT_GT(sqnr(calibrated({"--weights", "int4", "--asymmetric", "--method", method})), int4 - 1)
        << method;
  EXPECT_GT(sqnr(calibrated({"--weights", "int4", "--clip", "error"})), 10);
}

TEST_F(Convolutions, ATableSaysAsMuchAsTheData) {
  const double seen = sqnr(calibrated({"--activations", "static"}));
  quern_json({"calibrate", model("cnn.onnx"), "--data", model("seen.npz"), "-o", at("t.json"), "--quiet"});
  EXPECT_DOUBLE_EQ(sqnr({"--activations", "static", "--calibration", at("t.json")}), seen);
}

TEST_F(Convolutions, ArtifactsAreSmaller) {
  const auto weights = [&](std::vector<std::string> options) {
    convert(std::move(options));
    return quern_json({"inspect", at("x.quern")}).at("groups").at(0).at("bytes").get<int64_t>();
  };
  const int64_t floats = weights({"--weights", "fp32"});
  EXPECT_LT(weights({"--weights", "fp16"}), floats * 6 / 10);
  EXPECT_LT(weights({"--weights", "int8"}), floats / 2);
}

// The samples of seen.npz as a folder for each of them.
TEST_F(Convolutions, ReadInputSetsOfOnnx) {
  const Tensor images = npy::Archive::open(model("unseen.npz")).read("image");
  const int64_t size = images.size() / images.dim(0);
  for (int64_t i = 0; i < images.dim(0); ++i) {
    const std::filesystem::path folder = dir_ / ("sets/test_data_set_" + std::to_string(i));
    std::filesystem::create_directories(folder);
    onnx::TensorProto proto;
    proto.set_name("image");
    proto.set_data_type(onnx::TensorProto::FLOAT);
    for (const int64_t dim : {int64_t{1}, images.dim(1), images.dim(2), images.dim(3)}) proto.add_dims(dim);
    proto.set_raw_data(images.bytes() + i * size * 4, static_cast<size_t>(size) * 4);
    std::ofstream(folder / "input_0.pb", std::ios::binary) << proto.SerializeAsString();
  }
  convert({"--activations", "static", "--calibration-data", at("sets")}, "sets.quern");
  convert({"--activations", "static", "--calibration-data", model("unseen.npz")});
  EXPECT_EQ(compared(at("sets"), "sets.quern").at("outputs"), compared(model("unseen.npz")).at("outputs"));
  const std::string damaged = dir_ / "sets/test_data_set_3/input_0.pb";
  std::filesystem::resize_file(damaged, 100);
  expect_refused(quern({"validate", model("cnn.onnx"), at("x.quern"), "--data", at("sets")}), 3,
                 {"test_data_set_3/input_0.pb", "truncated"});
  std::filesystem::remove(damaged);
  expect_refused(quern({"calibrate", model("cnn.onnx"), "--data", at("sets"), "-o", at("t.json")}), 3,
                 {"test_data_set_3/input_0.pb", "is missing", "'image'"});
}

}  // namespace
}  // namespace quern::test
