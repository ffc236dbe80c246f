// Models and data that calibration and quantization can stumble over: each ends in one line that names the
// culprit, or in a result that is defined.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>

#include "tests/cli/quern_binary.h"
#include "tests/formats/onnx/onnx_text.h"
#include "tests/support/temp_dir.h"

namespace quern::test {
namespace {

using nlohmann::json;

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class BadCalibration : public testing::Test {
 protected:
  BadCalibration() {
    std::filesystem::copy_file(example("tokenizer.json"), file("tokenizer.json"));
    std::ofstream(file("text.txt")) << read_all(example("heldout.txt")).substr(20000, 6000);
  }

  std::string file(const std::string& name) const { return (dir_ / name).string(); }

  // The example with one of its weights [rows, cols] changed.
  std::string model_with(const std::string& weight, const std::function<void(std::vector<float>&)>& change) {
    onnx::ModelProto model;
    EXPECT_TRUE(model.ParseFromString(read_all(example("model.onnx"))));
    bool found = false;
    for (auto& tensor : *model.mutable_graph()->mutable_initializer()) {
      if (tensor.name() != weight) continue;
      std::vector<float> values(tensor.raw_data().size() / 4);
      std::memcpy(values.data(), tensor.raw_data().data(), tensor.raw_data().size());
      change(values);
      std::memcpy(tensor.mutable_raw_data()->data(), values.data(), tensor.raw_data().size());
      found = true;
    }
    EXPECT_TRUE(found) << weight;
    std::ofstream(file("model.onnx"), std::ios::binary) << model.SerializeAsString();
    return file("model.onnx");
  }

  ProgramResult convert(const std::string& model, std::vector<std::string> options) {
    options.insert(options.begin(), {"convert", model, "-o", file("out.quern"), "--quiet"});
    return quern(options);
  }
  ProgramResult calibrate(const std::string& model, const std::string& data) {
    return quern({"calibrate", model, "--data", data, "-o", file("table.json"), "--samples", "2", "--context",
                  "32", "--quiet"});
  }
  // That it runs, and says something that is a number.
  void expect_sound() {
    const json result =
        quern_json({"validate", file("model.onnx"), file("out.quern"), "--data", file("text.txt"),
                    "--samples", "2", "--context", "64", "--no-speed", "--quiet"});
    EXPECT_TRUE(std::isfinite(result["kl"]["mean"].get<double>()));
    EXPECT_LT(result["kl"]["mean"].get<double>(), 0.1);
  }

  TempDir dir_;
};

const char* const kNorm = "m.layers.3.input_layernorm.weight";
const char* const kFew = "2";

TEST_F(BadCalibration, ActivationsThatAreNotFiniteNameTheirTensor) {
  // Finite weights whose products overflow.
  const std::string model = model_with(kNorm, [](std::vector<float>& w) { w[7] = 3e38F; });
  expect_refused(calibrate(model, file("text.txt")), 3, {"text.txt", "activation '", "layers.3", "feature"});
  for (const char* method : {"gptq", "smooth", "awq", "lsq"}) {
    expect_refused(
        convert(model, {"--weights", "int4", "--method", method, "--calibration-data", file("text.txt"),
                        "--calibration-samples", kFew, "--calibration-context", "32"}),
        3, {"text.txt", "activation '", "feature"});
    EXPECT_FALSE(std::filesystem::exists(file("out.quern")));
  }
  expect_refused(convert(model, {"--activations", "static", "--calibration-data", file("text.txt"),
                                 "--calibration-samples", kFew, "--calibration-context", "32"}),
                 3, {"layers.3"});
}

TEST_F(BadCalibration, AWeightThatIsNotANumberIsNamed) {
  const std::string model =
      model_with("m.embed_tokens.weight", [](std::vector<float>& w) { w[5 * 192 + 3] = NAN; });
  expect_refused(convert(model, {"--weights", "int4"}), 3, {"embed_tokens", "element 963"});
}

TEST_F(BadCalibration, ChannelsOfZerosAndConstantsAreDefined) {
  // A channel that is always 0, and one that is always the same.
  model_with(kNorm, [](std::vector<float>& w) { w[3] = 0; });
  const std::vector<std::vector<std::string>> ways = {
      {"--weights", "int4", "--method", "gptq"},
      {"--weights", "int4", "--method", "awq"},
      {"--weights", "int8", "--method", "smooth", "--activations", "static"},
      {"--weights", "int8", "--activations", "static", "--activation-codes", "uint8-asymmetric"}};
  for (std::vector<std::string> options : ways) {
    options.insert(options.end(), {"--calibration-data", file("text.txt"), "--calibration-samples", "6",
                                   "--calibration-context", "64"});
    const ProgramResult result = convert(file("model.onnx"), options);
    ASSERT_EQ(result.status, 0) << result.err;
    expect_sound();
  }
}

TEST_F(BadCalibration, ConstantTensorsAreExact) {
  // All weights of a matrix equal: every scheme has a code for that.
  const std::string model = model_with("m.embed_tokens.weight", [](std::vector<float>& w) {
    std::fill(w.begin(), w.begin() + 192 * 64, 0.125F);
    std::fill(w.begin() + 192 * 64, w.begin() + 192 * 128, 0.0F);
  });
  for (const char* method : {"rtn", "lsq", "hqq"}) {
    ASSERT_EQ(convert(model, {"--weights", "int4", "--method", method}).status, 0);
    expect_sound();
  }
}

TEST_F(BadCalibration, GroupsThatDoNotDivideTheWidth) {
  std::filesystem::copy_file(example("model.onnx"), file("model.onnx"));
  for (const char* group : {"128", "256"}) {  // of 192
    const ProgramResult result = convert(file("model.onnx"), {"--weights", "int4", "--group-size", group});
    ASSERT_EQ(result.status, 0) << result.err;
    expect_sound();
  }
}

TEST_F(BadCalibration, ScalesThatOverflowHalfPrecision) {
  const std::string model =
      model_with("m.embed_tokens.weight", [](std::vector<float>& w) { w[192 * 9] = 1e7F; });
  expect_refused(convert(model, {"--weights", "int4"}), 3, {"embed_tokens", "row 9", "f16"});
  // Scales in fp32 hold it.
  EXPECT_EQ(convert(model, {"--weights", "int4", "--override", "embed=int4,scales:f32"}).status, 0);
}

TEST_F(BadCalibration, DataThatIsNone) {
  std::filesystem::copy_file(example("model.onnx"), file("model.onnx"));
  std::ofstream(file("empty.txt")) << "";
  std::ofstream(file("utf16.txt"), std::ios::binary) << std::string(
      "\xff\xfe"
      "a\0b\0",
      6);
  std::ofstream(file("latin1.txt")) << "na\xefve";
  std::ofstream(file("ids.jsonl")) << "{\"ids\": [4, 4096]}\n";
  std::ofstream(file("negative.jsonl")) << "{\"ids\": [-1, 5]}\n";
  const std::vector<std::pair<std::string, std::vector<std::string>>> bad = {
      {"empty.txt", {"empty.txt", "empty"}},
      {"utf16.txt", {"utf16.txt", "UTF-8"}},
      {"latin1.txt", {"latin1.txt", "UTF-8"}},
      {"ids.jsonl", {"ids.jsonl", "4096"}},
      {"negative.jsonl", {"negative.jsonl", "ids"}}};
  for (const auto& [name, parts] : bad) {
    expect_refused(calibrate(file("model.onnx"), file(name)), 3, parts);
    for (const char* method : {"gptq", "smooth", "awq", "lsq"}) {
      expect_refused(convert(file("model.onnx"),
                             {"--weights", "int4", "--method", method, "--calibration-data", file(name)}),
                     3, parts);
    }
  }
  // Shorter than one window: a window of its own.
  std::ofstream(file("short.txt")) << "It was a dark night.";
  EXPECT_EQ(convert(file("model.onnx"),
                    {"--weights", "int8", "--activations", "static", "--calibration-data", file("short.txt")})
                .status,
            0);
}

TEST_F(BadCalibration, ATableOfAnotherModel) {
  std::filesystem::copy_file(example("model.onnx"), file("model.onnx"));
  ASSERT_EQ(calibrate(file("model.onnx"), file("text.txt")).status, 0);
  model_with(kNorm, [](std::vector<float>& w) { w[0] += 0.25F; });
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{"--activations", "static"}, {"--weights", "int4", "--method", "awq"}}) {
    std::vector<std::string> all = options;
    all.insert(all.end(), {"--calibration", file("table.json")});
    expect_refused(convert(file("model.onnx"), all), 2, {"model.onnx", "table.json"});
  }
  std::ofstream(file("no-table.json")) << "{\"figures\": 3}";
  expect_refused(
      convert(file("model.onnx"), {"--activations", "static", "--calibration", file("no-table.json")}), 3,
      {"no-table.json"});
}

TEST_F(BadCalibration, OptionsWithoutTheirPartners) {
  std::filesystem::copy_file(example("model.onnx"), file("model.onnx"));
  expect_refused(convert(file("model.onnx"), {"--activations", "static"}), 2, {"--calibration"});
  expect_refused(convert(file("model.onnx"), {"--activation-clip", "mse"}), 2, {"--activations static"});
  expect_refused(convert(file("model.onnx"), {"--activations", "static", "--activation-clip", "most",
                                              "--calibration-data", file("text.txt")}),
                 2, {"most"});
  expect_refused(convert(file("model.onnx"), {"--weights", "int4", "--method", "awq"}), 2,
                 {"--calibration-data"});
  expect_refused(convert(file("model.onnx"), {"--weights", "int4", "--clip", "error"}), 2,
                 {"--clip error", "--calibration-data"});
  expect_refused(convert(file("model.onnx"), {"--weights", "int4", "--clip", "error", "--method", "gptq",
                                              "--calibration-data", file("text.txt")}),
                 2, {"clip 'error'", "gptq"});
}

}  // namespace
}  // namespace quern::test
