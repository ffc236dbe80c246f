// Broken files through the program: one line that names the file, the documented status, nothing left behind.
#include <gtest/gtest.h>

#include "formats/onnx/export.h"
#include "ir/rewriter.h"
#include "runtime/generate/random.h"
#include "tests/cli/quern_binary.h"

namespace quern::test {
namespace {

class BadModel : public testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& content) const {
    write_text(folder_ / name, content);
    return (folder_ / name).string();
  }
  static const std::string& model() {
    static const std::string kModel = read_text(example("model.onnx"));
    return kModel;
  }
  TempDir folder_;
};

TEST_F(BadModel, Missing) {
  expect_refused(quern({"inspect", "/nowhere/model.onnx"}), 5, {"/nowhere/model.onnx"});
}

TEST_F(BadModel, Empty) {
  expect_refused(quern({"inspect", file("empty.onnx", "")}), 3, {"empty.onnx"});
}

TEST_F(BadModel, Text) {
  expect_refused(quern({"inspect", file("text.onnx", "this is a text, not a model\n")}), 3, {"text.onnx"});
}

TEST_F(BadModel, Truncated) {
  for (const double share : {0.0001, 0.01, 0.99}) {
    const auto length = static_cast<size_t>(share * static_cast<double>(model().size()));
    expect_refused(quern({"inspect", file("cut.onnx", model().substr(0, length))}), 3, {"cut.onnx"});
  }
}

// A flipped bit in a weight cannot be seen in ONNX, which has no checksums; one elsewhere may hit a name.
// What matters is that the program either reads the model or refuses it in its own words.
TEST_F(BadModel, BitFlips) {
  const std::string path = file("flip.onnx", model());
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto flip = [&](size_t at, int bit) {
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(model()[at] ^ (1 << bit)));
    file.flush();
    return at;
  };
  runtime::RandomStream random(11);
  int refused = 0;
  for (int trial = 0; trial < 24; ++trial) {
    // The nodes are at the head of the file, the inputs and outputs at its tail.
    const auto offset = static_cast<size_t>(random.next_uniform() * (trial % 2 == 0 ? 60000 : 4000));
    const size_t at = flip(trial % 2 == 0 ? offset : model().size() - 1 - offset, trial % 8);
    const ProgramResult result =
        quern({"inspect", path, "--raw", "--json"}, {.limit = std::chrono::seconds(30)});
    EXPECT_TRUE(result.status == 0 || result.status == 3 || result.status == 4)
        << "byte " << at << ": " << result.err;
    if (result.status != 0) {
      EXPECT_TRUE(result.err.starts_with("quern: ")) << result.err;
      ++refused;
    }
    file.seekp(static_cast<std::streamoff>(at));
    file.put(model()[at]);
    file.flush();
  }
  EXPECT_GT(refused, 4);
}

TEST_F(BadModel, AFolderThatCannotBeAModel) {
  expect_refused(quern({"inspect", folder_.path().string()}), 5, {"holds no model"});
}

TEST_F(BadModel, UnsupportedNodesAreNamedAllAtOnce) {
  Graph graph("custom");
  Rewriter rewriter(graph);
  rewriter.set_opset("", 17);
  rewriter.set_opset("com.acme", 3);
  Value* x = rewriter.add_input("x", {DType::F32, SymShape{Dim(2)}});
  Node* a = rewriter.add_node({.op = "Foo", .domain = "com.acme", .opset = 3, .name = "a", .inputs = {x}});
  Node* b = rewriter.add_node({.op = "Frobnicate", .opset = 17, .name = "b", .inputs = {a->output()}});
  Node* c =
      rewriter.add_node({.op = "RandomNormalLike", .opset = 17, .inputs = {b->output()}, .outputs = {{"y"}}});
  rewriter.add_output(c->output(), "y");
  rewriter.commit();
  const std::string path = (folder_ / "custom.onnx").string();
  onnx_format::export_model(graph, path, {});
  const std::vector<std::string> parts{"custom.onnx",
                                       "3 nodes",
                                       "Foo (domain 'com.acme', version 3) at 'a'",
                                       "Frobnicate (domain 'ai.onnx', version 17) at 'b'",
                                       "RandomNormalLike",
                                       "at the node producing 'y'",
                                       "export with"};
  write_text(folder_ / "x.npy", "");
  expect_refused(quern({"run", path, "--input", "x=" + (folder_ / "x.npy").string()}), 4, parts);
  expect_refused(quern({"convert", path, "-o", (folder_ / "custom.quern").string()}), 4, parts);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "custom.quern"));
}

TEST(FullDisk, LeavesNothingHalfWritten) {
  const TempDir folder;
  const std::string target = (folder / "copy.onnx").string();
  const ProgramResult result =
      quern({"export", example("model.onnx"), "-o", target}, {.largest_file = 1 << 20});
  expect_refused(result, 5, {"copy.onnx"});
  EXPECT_TRUE(folder.names().empty());
}

// Whatever writes a large file writes all of it or none.
TEST(FullDisk, NoCommandLeavesHalfAFile) {
  const TempDir folder;
  const auto at = [&](const char* name) { return (folder / name).string(); };
  const ProgramRun full = {.largest_file = 1 << 20};
  const std::string model = example("model.onnx");
  expect_refused(quern({"convert", model, "-o", at("m.quern")}, full), 5, {"m.quern"});
  expect_refused(quern({"convert", model, "-o", at("m.quern"), "--dump-after", "fuse-linear"}, full), 5,
                 {"m.quern.fuse-linear.onnx"});
  expect_refused(quern({"synth", "-o", at("s.quern"), "--layers", "1"}, full), 5, {"s.quern"});
  expect_refused(quern({"synth", "-o", at("s.onnx"), "--layers", "1", "--width", "64"}, full), 5, {"s.onnx"});
  EXPECT_TRUE(folder.names().empty()) << folder.names().front();
}

TEST(FullDisk, AFailedRecordLeavesTheArtifactAsItWas) {
  const TempDir folder;
  const std::string artifact = (folder / "m.quern").string();
  ASSERT_EQ(quern({"convert", example("model.onnx"), "-o", artifact, "-q"}).status, 0);
  const std::string before = read_text(artifact);
  write_text(folder / "ids.jsonl", "{\"ids\": [1, 2, 3, 4, 5, 6]}\n");
  const ProgramResult result = quern({"validate", example("model.onnx"), artifact, "--data",
                                      (folder / "ids.jsonl").string(), "--no-speed", "--record", "-q"},
                                     {.largest_file = 1 << 20});
  EXPECT_EQ(result.status, 5) << result.err;
  EXPECT_EQ(read_text(artifact), before);
  EXPECT_EQ(folder.names().size(), 2u);
}

TEST(FullDisk, ATargetThatExistsStaysAsItWas) {
  const TempDir folder;
  write_text(folder / "copy.onnx", "precious");
  quern({"export", example("model.onnx"), "-o", (folder / "copy.onnx").string()}, {.largest_file = 1 << 20});
  EXPECT_EQ(read_text(folder / "copy.onnx"), "precious");
}

TEST(Inspect, JsonSaysWhatAModelIs) {
  const auto object = quern_json({"inspect", example(""), "--tensors"});
  EXPECT_EQ(object.at("format"), "ONNX");
  EXPECT_EQ(object.at("size_bytes"), std::filesystem::file_size(example("model.onnx")));
  EXPECT_GT(object.at("parameters"), 3'900'000);
  int64_t bytes = 0;
  for (const auto& group : object.at("groups")) bytes += group.at("bytes").get<int64_t>();
  EXPECT_EQ(bytes, object.at("weight_bytes"));
  int64_t tensor_bytes = 0;
  for (const auto& tensor : object.at("tensors")) tensor_bytes += tensor.at("bytes").get<int64_t>();
  EXPECT_EQ(tensor_bytes, bytes);
}

// Scoring, calibrating and training take minutes; that their results cannot be kept is said before.
TEST(BadInput, OutputsThatCannotBeMadeAreRefusedBeforeAllElse) {
  const std::string none = "/no-such-folder/file";
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"validate", "absent.onnx", "absent.quern", "--data", "absent.txt", "--report", none},
           {"compare", "absent.onnx", "absent.quern", "--data", "absent.txt", "--report", none},
           {"convert", "absent.onnx", "-o", none},
           {"calibrate", "absent.onnx", "--data", "absent.txt", "-o", none},
           {"sensitivity", "absent.onnx", "--data", "absent.txt", "-o", none},
           {"train-heads", "medusa", "absent.quern", "--data", "absent.txt", "-o", none}}) {
    expect_refused(quern(command), 5, {"cannot create '" + none + "'"});
  }
}

}  // namespace
}  // namespace quern::test
