// ONNX models that break a rule, through the program: one line that names the file and the culprit, exit
// status 3, no file left behind, and neither a crash, nor a hang, nor memory that the file does not justify.
#include <gtest/gtest.h>
#include <unistd.h>

#include "formats/npy/npy.h"
#include "tests/cli/quern_binary.h"
#include "tests/formats/onnx/onnx_text.h"

namespace quern::test {
namespace {

using onnx_format::test::parse_text;

const ProgramRun kFrugal = {.most_memory = uint64_t{512} << 20, .limit = std::chrono::seconds(60)};

struct BadModel {
  const char* name;
  std::string bytes;
  std::vector<std::string> parts;  // of the message, beside the file's name
  int status = 3;
};

void PrintTo(const BadModel& model, std::ostream* out) {
  *out << model.name;
}

std::string text(const std::string& graph) {
  return parse_text(graph).SerializeAsString();
}

std::string with_initializer(const std::function<void(onnx::TensorProto&)>& fill) {
  auto model = parse_text("g (float[2] x) => (float[2] y) { y = Add(x, w) }");
  auto& tensor = *model.mutable_graph()->add_initializer();
  tensor.set_name("w");
  tensor.set_data_type(onnx::TensorProto::FLOAT);
  fill(tensor);
  return model.SerializeAsString();
}

std::string nested(int depth) {
  onnx::GraphProto graph = parse_text("g () => (float[2] y) { y = Constant<value_int = 1>() }").graph();
  for (int i = 0; i < depth; ++i) {
    onnx::GraphProto outer;
    auto& node = *outer.add_node();
    node.set_op_type("If");
    auto& attribute = *node.add_attribute();
    attribute.set_name("then_branch");
    attribute.set_type(onnx::AttributeProto::GRAPH);
    attribute.mutable_g()->Swap(&graph);
    graph.Swap(&outer);
  }
  auto model = parse_text("g (float[2] x) => (float[2] y) { y = Relu(x) }");
  model.mutable_graph()->Swap(&graph);
  return model.SerializeAsString();
}

// A constant of `count` elements that is computed by one node from a shape.
std::string large_constant(const std::string& count) {
  return text("g (float[1] x) => (float[n] y) <int64[1] shape = {" + count +
              "}> { c = ConstantOfShape(shape) y = Add(x, c) }");
}

std::vector<BadModel> bad_models() {
  const std::string whole = text("g (float[2] x) => (float[2] y) { y = Relu(x) }");
  return {
      {"empty", "", {"empty"}},
      {"text", "this is a text, not a model\n", {"ONNX"}},
      {"pickle", std::string("\x80\x02}q\x00", 5), {"ONNX"}},
      {"lfs_pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n", {"Git LFS"}},
      {"no_graph", std::string("\x08\x08", 2), {"no graph"}},
      {"truncated", whole.substr(0, whole.size() - 3), {}},
      // A graph that claims 2^60 bytes.
      {"huge_length", std::string("\x08\x08\x3A\x80\x80\x80\x80\x80\x80\x80\x80\x10", 12), {}},
      {"huge_tensor", with_initializer([](auto& t) { t.add_dims(int64_t{1} << 40); }), {"'w'"}},
      {"overflowing_tensor",
       with_initializer([](auto& t) { t.add_dims(int64_t{1} << 40), t.add_dims(int64_t{1} << 40); }),
       {"'w'", "too many elements"}},
      {"short_tensor",
       with_initializer([](auto& t) { t.add_dims(2), t.set_raw_data("12345"); }),
       {"'w'", "8 bytes"}},
      {"unknown_type",
       with_initializer([](auto& t) { t.set_data_type(99), t.add_dims(0); }),
       {"'w'", "99"},
       4},
      {"negative_dimension", with_initializer([](auto& t) { t.add_dims(-2); }), {"'w'", "negative"}},
      {"cycle",
       text("g (float[2] x) => (float[2] y) { a = Add(x, b) b = Relu(a) y = Neg(b) }"),
       {"'a'", "cycle"}},
      {"own_input", text("g (float[2] x) => (float[2] y) { y = Add(x, y) }"), {"'y'", "cycle"}},
      {"undefined", text("g (float[2] x) => (float[2] y) { y = Relu(z) }"), {"'z'", "defined nowhere"}},
      {"defined_twice", text("g (float[2] x) => (float[2] y) { y = Relu(x) y = Neg(x) }"), {"'y'"}},
      {"wrong_output_type", text("g (float[2] x) => (int64[2] y) { y = Relu(x) }"), {"'y'", "i64", "f32"}},
      {"wrong_input_type", text("g (int64[2, 2] x) => (float[2, 2] y) { y = MatMul(x, x) }"), {"'y'"}},
      {"types_that_differ", text("g (float[2] x, int64[2] z) => (float[2] y) { y = Add(x, z) }"), {"'y'"}},
      {"shapes_that_differ", text("g (float[2] x, float[3] z) => (float[2] y) { y = Add(x, z) }"), {"'y'"}},
      {"too_few_inputs", text("g (float[2] x) => (float[2] y) { y = Add(x) }"), {"'y'", "Add"}},
      {"wrong_attribute",
       text("g (float[2] x) => (float[2] y) { y = Softmax<axis = \"last\">(x) }"),
       {"'y'", "axis"}},
      {"unknown_operator",
       text("g (float[2] x) => (float[2] y) { y = Frobnicate(x) }"),
       {"'y'", "Frobnicate"},
       4},
      {"deeply_nested", nested(3000), {}},
  };
}

class BadOnnxThroughTheProgram : public testing::TestWithParam<BadModel> {};

TEST_P(BadOnnxThroughTheProgram, IsRefused) {
  const TempDir folder;
  const std::string path = (folder / "bad.onnx").string();
  write_text(path, GetParam().bytes);
  std::vector<std::string> parts = GetParam().parts;
  parts.emplace_back("bad.onnx");
  expect_refused(quern({"convert", path, "-o", (folder / "out.quern").string()}, kFrugal), GetParam().status,
                 parts);
  // Operators that are unknown can be looked at.
  const ProgramResult inspected = quern({"inspect", path, "-q"}, kFrugal);
  if (GetParam().status != 4 || inspected.status != 0) expect_refused(inspected, GetParam().status, parts);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"bad.onnx"});
}

INSTANTIATE_TEST_SUITE_P(All, BadOnnxThroughTheProgram, testing::ValuesIn(bad_models()),
                         [](const auto& info) { return std::string(info.param.name); });

// From a hundred bytes: constants that folding must not make, and that running must refuse.
// What lies about in the same folders is called by its name.
TEST(ForeignFiles, AreNamed) {
  const TempDir folder = TempDir::in_memory();
  const auto refused = [&](const std::string& content, const std::string& name) {
    write_text(folder / "m.onnx", content);
    expect_refused(quern({"inspect", folder / "m.onnx"}), 3,
                   {"m.onnx' is " + name, "a model is an .onnx file"});
  };
  refused("GGUF\3", "a GGUF file of llama.cpp");
  refused("PK\3\4archive", "a ZIP archive");
  refused(std::string("\x20\0\0\0\0\0\0\0{\"a\":{}}", 16), "a safetensors file");
  refused("version https://git-lfs.github.com/spec/v1\noid sha256:0", "a pointer of Git LFS");
  refused("\n {\"model\": {}}", "JSON");
  refused("QUERNKV1", "a prefix cache");
  refused("<!DOCTYPE html>", "a page of HTML");
}

TEST(HugeClaims, AConstantOfTerabytesIsNotMade) {
  const TempDir folder;
  npy::write(folder / "x.npy", Tensor::from<float>({1}, {1}));
  for (const char* count : {"1099511627776", "4611686018427387904"}) {
    const std::string path = (folder / "large.onnx").string();
    write_text(path, large_constant(count));
    const ProgramResult inspected = quern({"inspect", path, "--quiet"}, kFrugal);
    EXPECT_TRUE(inspected.status == 0 || inspected.status == 3) << inspected.err;
    const ProgramResult converted =
        quern({"convert", path, "-o", (folder / "out.quern").string(), "-q"}, kFrugal);
    EXPECT_TRUE(converted.status == 0 || converted.status == 3) << converted.err;
    const ProgramResult ran = quern({"run", path, "-i", (folder / "x.npy").string()}, kFrugal);
    EXPECT_TRUE(ran.status == 3 || ran.status == 5) << ran.status << ran.err;
    EXPECT_TRUE(ran.err.starts_with("quern: ")) << ran.err;
  }
}

class ExternalData : public testing::Test {
 protected:
  // Four floats "w", said to be in the file `location`.
  std::string model(const std::string& location, const std::string& offset = "0") const {
    auto model = parse_text("g (float[4] x) => (float[4] y) { y = Add(x, w) }");
    auto& tensor = *model.mutable_graph()->add_initializer();
    tensor.set_name("w");
    tensor.set_data_type(onnx::TensorProto::FLOAT);
    tensor.add_dims(4);
    tensor.set_data_location(onnx::TensorProto::EXTERNAL);
    for (const auto& [key, value] :
         {std::pair<const char*, std::string>{"location", location}, {"offset", offset}}) {
      auto& entry = *tensor.add_external_data();
      entry.set_key(key);
      entry.set_value(value);
    }
    write_text(folder_ / "model/m.onnx", model.SerializeAsString());
    return (folder_ / "model/m.onnx").string();
  }
  void refused(const std::string& path, const std::vector<std::string>& parts) const {
    expect_refused(quern({"convert", path, "-o", (folder_ / "out.quern").string()}), 3, parts);
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out.quern"));
  }
  void SetUp() override {
    std::filesystem::create_directory(folder_ / "model");
    write_text(folder_ / "secret", std::string(16, '\0'));
    write_text(folder_ / "model/short", std::string(15, '\0'));
  }
  TempDir folder_;
};

TEST_F(ExternalData, Missing) {
  refused(model("weights.bin"), {"'w'", "weights.bin", "missing"});
}

TEST_F(ExternalData, Short) {
  refused(model("short"), {"'w'", "short"});
  refused(model("short", "4000000000000"), {"'w'", "short"});
  refused(model("short", "18446744073709551612"), {"'w'", "short"});
  refused(model("short", "-1"), {"'w'", "-1"});
}

TEST_F(ExternalData, OutsideTheFolder) {
  refused(model("../secret"), {"'w'", "../secret"});
  refused(model("a/../../secret"), {"'w'", "secret"});
  refused(model((folder_ / "secret").string()), {"'w'", "secret"});
  std::filesystem::create_symlink("../secret", folder_ / "model/link");
  refused(model("link"), {"'w'", "link", "outside"});
}

// 8 GB of embeddings in a file that is a hole, but for one row beyond the 4 GB that 32 bits can count.
TEST(LargeModels, ATableOfEightGigabytesIsOpenedUnreadAndLookedUp) {
  constexpr int64_t kRows = int64_t{1} << 20;
  constexpr int64_t kWidth = 2048;
  constexpr int64_t kRow = 900'000;
  const TempDir folder;
  auto model = parse_text("g (int64[n] ids) => (float[n, 2048] y) { y = Gather(w, ids) }");
  auto& tensor = *model.mutable_graph()->add_initializer();
  tensor.set_name("w");
  tensor.set_data_type(onnx::TensorProto::FLOAT);
  tensor.add_dims(kRows);
  tensor.add_dims(kWidth);
  tensor.set_data_location(onnx::TensorProto::EXTERNAL);
  auto& entry = *tensor.add_external_data();
  entry.set_key("location");
  entry.set_value("w.bin");
  write_text(folder / "m.onnx", model.SerializeAsString());
  write_text(folder / "w.bin", "");
  if (::truncate((folder / "w.bin").c_str(), kRows * kWidth * 4) != 0) GTEST_SKIP() << "no sparse files here";
  {
    std::fstream file(folder / "w.bin", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(kRow * kWidth * 4 + 8);
    const float seven = 7;
    file.write(reinterpret_cast<const char*>(&seven), 4);
  }
  const std::string path = (folder / "m.onnx").string();
  const ProgramResult inspected = quern({"inspect", path, "--json"});
  EXPECT_EQ(inspected.status, 0) << inspected.err;
  EXPECT_EQ(nlohmann::json::parse(inspected.out).at("weight_bytes"), kRows * kWidth * 4);
  EXPECT_LT(inspected.peak_bytes, int64_t{400} << 20);

  npy::write(folder / "ids.npy", Tensor::from<int64_t>({2}, {1, kRow}));
  const ProgramResult ran =
      quern({"run", path, "-i", (folder / "ids.npy").string(), "-o", (folder / "out").string()});
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_LT(ran.peak_bytes, int64_t{400} << 20);
  const Tensor rows = npy::read(folder / "out/y.npy");
  ASSERT_EQ(rows.shape(), (Shape{2, kWidth}));
  EXPECT_EQ(rows.at(kWidth + 2), 7);
  EXPECT_EQ(rows.at(kWidth + 3), 0);
}

}  // namespace
}  // namespace quern::test
