// quern calibrate, convert with calibration, sensitivity, compare and diagnosis, on the example decoder.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "tests/cli/quern_binary.h"
#include "tests/support/temp_dir.h"

namespace quern::test {
namespace {

using nlohmann::json;

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Calibrate : public testing::Test {
 protected:
  Calibrate() {
    // Two chapters that have nothing in common: one to calibrate with, one to measure on.
    const std::string text = read_all(example("heldout.txt"));
    std::ofstream(seen()) << text.substr(20000, 14000);
    std::ofstream(unseen()) << text.substr(0, 6000);
  }

  std::string seen() const { return (dir_ / "seen.txt").string(); }
  std::string unseen() const { return (dir_ / "unseen.txt").string(); }
  std::string file(const std::string& name) const { return (dir_ / name).string(); }

  json convert(const std::string& name, std::vector<std::string> options) {
    options.insert(options.begin(), {"convert", example("model.onnx"), "-o", file(name), "--quiet"});
    return quern_json(options);
  }
  json validate(const std::string& name, std::vector<std::string> options = {}, int status = 0) {
    options.insert(options.begin(), {"validate", example("model.onnx"), file(name), "--data", unseen(),
                                     "--quiet", "--no-speed"});
    return quern_json(options, status);
  }
  static double kl(const json& validation) { return validation["kl"]["mean"].get<double>(); }

  TempDir dir_;
};

const std::vector<std::string> kFew = {"--calibration-samples", "10", "--calibration-context", "96"};

TEST_F(Calibrate, GptqLowersTheDivergenceOfThreeBits) {
  convert("rtn.quern", {"--weights", "int3"});
  std::vector<std::string> options = {"--weights", "int3", "--method", "gptq", "--calibration-data", seen()};
  options.insert(options.end(), kFew.begin(), kFew.end());
  const json converted = convert("gptq.quern", options);
  EXPECT_NEAR(converted["bits_per_weight"].get<double>(), 3.5, 0.1);
  const json nearest = validate("rtn.quern");
  const json best = validate("gptq.quern");
  EXPECT_LT(kl(best), 0.75 * kl(nearest));
  EXPECT_TRUE(best["warnings"].empty());
  // Whoever validates with the calibration data is told.
  const ProgramResult flattered = quern(
      {"validate", example("model.onnx"), file("gptq.quern"), "--data", seen(), "--quiet", "--no-speed"});
  EXPECT_NE(flattered.err.find("calibrated with this very data"), std::string::npos) << flattered.err;
}

TEST_F(Calibrate, EightBitActivationsCostLittle) {
  convert("w8.quern", {"--weights", "int8"});
  convert("w8a8.quern", {"--weights", "int8", "--activations", "dynamic"});
  const json weights = validate("w8.quern");
  const json both = validate("w8a8.quern");
  EXPECT_GT(kl(both), kl(weights)) << "8-bit activations are not used";
  EXPECT_LT(kl(both), 0.02);
}

TEST_F(Calibrate, ActivationsOfEveryKind) {
  const auto cost = [&](std::vector<std::string> options) {
    if (std::find(options.begin(), options.end(), "static") != options.end()) {
      options.insert(options.end(), {"--calibration-data", seen()});
      options.insert(options.end(), kFew.begin(), kFew.end());
    }
    convert("x.quern", options);
    return kl(validate("x.quern"));
  };
  const double weights = cost({"--weights", "int8"});
  const double plain = cost({"--activations", "static"});
  EXPECT_GT(plain, weights);
  EXPECT_LT(plain, 0.05);
  EXPECT_LT(cost({"--activations", "static", "--method", "smooth"}), plain);
  EXPECT_LT(cost({"--activations", "static", "--activation-codes", "uint8-asymmetric"}), 0.05);
  EXPECT_LT(cost({"--activations", "static", "--activation-clip", "percentile:99.99"}), 0.05);
  for (const char* dynamic : {"dynamic-token", "dynamic-tensor"}) {
    const double each = cost({"--activations", dynamic});
    EXPECT_GT(each, weights) << dynamic;
    EXPECT_LT(each, plain) << dynamic;
  }
}

TEST_F(Calibrate, AwqLowersTheDivergenceOfFourBits) {
  convert("rtn.quern", {"--weights", "int4"});
  std::vector<std::string> options = {"--weights", "int4", "--method", "awq", "--calibration-data", seen()};
  options.insert(options.end(), kFew.begin(), kFew.end());
  convert("awq.quern", options);
  options[3] = "awq+gptq";
  convert("both.quern", options);
  const double rounded = kl(validate("rtn.quern")), awq = kl(validate("awq.quern"));
  EXPECT_LT(awq, 0.9 * rounded);
  EXPECT_LT(kl(validate("both.quern")), 0.9 * awq);
}

TEST_F(Calibrate, KeysAndValuesOfFewerBits) {
  convert("plain.quern", {"--weights", "fp32"});
  convert("kv.quern", {"--weights", "fp32", "--kv", "int8"});
  const double half = kl(validate("plain.quern", {"--kv", "fp16"}));
  const double eight = kl(validate("kv.quern"));
  const double four = kl(validate("kv.quern", {"--kv", "int4"}));
  EXPECT_EQ(kl(validate("kv.quern", {"--kv", "fp32"})), 0);
  EXPECT_GT(half, 0);
  EXPECT_LT(half, eight);
  EXPECT_LT(eight, 1e-3);
  EXPECT_LT(eight, four);
  EXPECT_LT(four, 0.05);
  const ProgramResult text =
      quern({"generate", file("kv.quern"), "-p", "Alice", "-n", "8", "--kv", "int4", "-q"});
  EXPECT_EQ(text.status, 0) << text.err;
}

TEST_F(Calibrate, PagesShowHowItCameAbout) {
  convert("int8.quern", {"--activations", "dynamic"});
  convert("int4.quern", {"--weights", "int4"});
  ASSERT_EQ(quern({"calibrate", example("model.onnx"), "--data", seen(), "--quiet", "--samples", "4",
                   "--context", "64", "-o", file("table.json")})
                .status,
            0);
  ASSERT_EQ(quern({"sensitivity", example("model.onnx"), "--data", seen(), "--quiet", "--samples", "1",
                   "--context", "32", "--format", "int4", "-o", file("sensitivity.json")})
                .status,
            0);
  validate("int4.quern", {"--layers", "--diagnosis-windows", "1", "--report", file("one.html"),
                          "--calibration", file("table.json"), "--sensitivity", file("sensitivity.json")});
  quern_json({"compare", example("model.onnx"), file("int8.quern"), file("int4.quern"), "--data", unseen(),
              "--quiet", "--report", file("all.html"), "--sensitivity", file("sensitivity.json")});
  const std::string one = read_all(file("one.html")), all = read_all(file("all.html"));
  for (const char* part :
       {"Weights and their codes", "Activations", "Sensitivity", "Layer by layer", "recipe.json"})
    EXPECT_NE(one.find(part), std::string::npos) << part;
  for (const char* part : {"Accuracy against size", "int8.quern", "int4.quern", "Sensitivity", "Recipes"})
    EXPECT_NE(all.find(part), std::string::npos) << part;
  for (const std::string& page : {one, all}) {
    EXPECT_EQ(page.find("<script"), std::string::npos);
    EXPECT_EQ(page.find("nan"), std::string::npos);
  }
  expect_refused(quern({"compare", example("model.onnx"), file("int4.quern"), "--data", unseen(), "--quiet",
                        "--report", file("x.html"), "--sensitivity", file("table.json")}),
                 3, {"table.json", "sensitivity"});
}

TEST_F(Calibrate, ShardsAndATableGiveImportance) {
  const std::vector<std::string> base = {
      "calibrate", example("model.onnx"), "--data", seen(), "--quiet", "--samples", "12", "--context", "64"};
  const auto calibrate = [&](std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    return quern_json(more);
  };
  EXPECT_TRUE(calibrate({"-o", file("whole.json")})["complete"].get<bool>());
  EXPECT_FALSE(calibrate({"-o", file("a.json"), "--shard", "1/2"})["complete"].get<bool>());
  calibrate({"-o", file("b.json"), "--shard", "2/2"});
  const json merged =
      quern_json({"calibrate", "merge", file("a.json"), file("b.json"), "-o", file("ab.json")});
  EXPECT_TRUE(merged["complete"].get<bool>());
  json whole = json::parse(read_all(file("whole.json")));
  json parts = json::parse(read_all(file("ab.json")));
  for (json* table : {&whole, &parts}) {
    for (json& tensor : (*table)["tensors"]) {
      tensor["state"].erase("average_min");
      tensor["state"].erase("average_max");
    }
  }
  EXPECT_EQ(parts, whole);
  convert("lsq.quern", {"--weights", "int3", "--method", "lsq"});
  convert("weighted.quern", {"--weights", "int3", "--method", "lsq", "--calibration", file("ab.json")});
  // The weights of errors change what is chosen; on so few samples not for the better for sure.
  const double blind = kl(validate("lsq.quern"));
  const double weighted = kl(validate("weighted.quern"));
  EXPECT_NE(weighted, blind);
  EXPECT_LT(weighted, 1.1 * blind);
  // Of another model, or half of it.
  expect_refused(quern({"convert", example("model.onnx"), "-o", file("x.quern"), "--weights", "int3",
                        "--method", "lsq", "--calibration", file("a.json")}),
                 2, {"a.json", "merge"});
  json other = json::parse(read_all(file("ab.json")));
  other["model"]["digest"] = "00";
  std::ofstream(file("other.json")) << other.dump();
  expect_refused(quern({"convert", example("model.onnx"), "-o", file("x.quern"), "--weights", "int3",
                        "--method", "lsq", "--calibration", file("other.json")}),
                 2, {"00", "model.onnx"});
}

TEST_F(Calibrate, BadDataIsRefused) {
  const auto calibrate = [&](const std::string& data, std::vector<std::string> more = {}) {
    more.insert(more.begin(),
                {"calibrate", example("model.onnx"), "--data", data, "-o", file("t.json"), "--quiet"});
    return quern(more);
  };
  std::ofstream(file("empty.txt")) << "";
  expect_refused(calibrate(file("empty.txt")), 3, {"empty.txt", "empty"});
  std::ofstream(file("latin1.txt")) << "caf\xe9 au lait";
  expect_refused(calibrate(file("latin1.txt")), 3, {"latin1.txt", "UTF-8"});
  std::ofstream(file("ids.jsonl")) << "{\"ids\": [1, 2, 99999]}\n";
  expect_refused(calibrate(file("ids.jsonl")), 3, {"99999", "vocabulary"});
  expect_refused(calibrate(file("missing.txt")), 5, {"missing.txt"});
  // Shorter than one window: a window of its own.
  std::ofstream(file("short.txt")) << "It was a dark night.";
  EXPECT_EQ(calibrate(file("short.txt")).status, 0);
  expect_refused(calibrate(file("short.txt"), {"--shard", "2/5"}), 3, {"1 windows", "5 shards"});
  expect_refused(calibrate(seen(), {"--shard", "3/2"}), 2, {"3/2"});
  expect_refused(quern({"convert", example("model.onnx"), "-o", file("m.quern"), "--weights", "int4",
                        "--method", "gptq"}),
                 2, {"--calibration-data"});
  EXPECT_FALSE(std::filesystem::exists(file("m.quern")));
}

TEST_F(Calibrate, FormatsAreChosenForATarget) {
  std::vector<std::string> options = {
      "--calibration-data",    seen(), "--target-bits",         "4.2", "--format", "int3", "--format", "int8",
      "--calibration-samples", "4",    "--calibration-context", "64"};
  const json mixed = convert("mixed.quern", options);
  EXPECT_LE(mixed["bits_per_weight"].get<double>(), 4.23) << "norms are counted too, which stay floats";
  EXPECT_GT(mixed["bits_per_weight"].get<double>(), 3.8);
  convert("int3.quern", {"--weights", "int3"});
  EXPECT_LT(kl(validate("mixed.quern")), 0.8 * kl(validate("int3.quern")));
  expect_refused(
      quern({"convert", example("model.onnx"), "-o", file("x.quern"), "--quiet", "--calibration-data", seen(),
             "--target-bits", "4", "--format", "int5", "--calibration-samples", "2"}),
      2, {"int5"});
  expect_refused(quern({"convert", example("model.onnx"), "-o", file("x.quern"), "--target-bits", "4"}), 2,
                 {"--calibration-data"});
  expect_refused(
      quern({"convert", example("model.onnx"), "-o", file("x.quern"), "--quiet", "--calibration-data", seen(),
             "--target-size", "10KB", "--format", "int8", "--calibration-samples", "2"}),
      2, {"more than"});
}

TEST_F(Calibrate, CandidatesStandSideBySide) {
  convert("int8.quern", {});
  convert("int4.quern", {"--weights", "int4"});
  const json table = quern_json({"compare", example("model.onnx"), file("int8.quern"), file("int4.quern"),
                                 "--data", unseen(), "--quiet"});
  ASSERT_EQ(table["candidates"].size(), 2U);
  EXPECT_LT(kl(table["candidates"][0]), kl(table["candidates"][1]));
  // The same figures as one by one.
  EXPECT_DOUBLE_EQ(kl(table["candidates"][1]), kl(validate("int4.quern")));
}

TEST_F(Calibrate, TheCulpritIsNamed) {
  convert("spoiled.quern", {"--override", "layers.3.mlp.up_proj=int2"});
  const json result = validate(
      "spoiled.quern", {"--layers", "--find-culprit", "--max-kl", "0.001", "--diagnosis-windows", "4"}, 1);
  ASSERT_TRUE(result["culprits"]["found"].get<bool>());
  ASSERT_EQ(result["culprits"]["names"].size(), 1U);
  const std::string name = result["culprits"]["names"][0];
  convert("mended.quern", {"--override", "layers.3.mlp.up_proj=int2", "--override", name + "=fp32"});
  EXPECT_LT(kl(validate("mended.quern")), 0.001) << name;
  EXPECT_GT(result["layers"].size(), 30U);
  EXPECT_GT(result["layers"][0]["sqnr_db"].get<double>(), 30);
  EXPECT_LT(result["layers"].back()["sqnr_db"].get<double>(), 30);
}

}  // namespace
}  // namespace quern::test
