// Data as ONNX's backend tests lay it out: a folder for each set, a TensorProto for each input.
#include <gtest/gtest.h>

#include <fstream>

#include "calibrate/dataset.h"
#include "ir/rewriter.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace quern::calibrate {
namespace {

// A TensorProto by its wire format: dims (1), data_type (2), name (8), raw_data (9).
std::string tensor_proto(const std::string& name, int type, const std::vector<int64_t>& dims,
                         const std::string& raw) {
  std::string out;
  for (const int64_t dim : dims) out += {'\x08', static_cast<char>(dim)};
  out += {'\x10', static_cast<char>(type)};
  out += '\x42' + std::string(1, static_cast<char>(name.size())) + name;
  return out + '\x4A' + std::string(1, static_cast<char>(raw.size())) + raw;
}

std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

class InputSets : public testing::Test {
 protected:
  InputSets() {
    Rewriter rewriter(graph_);
    rewriter.add_input("x", {.dtype = DType::F32, .shape = SymShape{Dim::symbol("batch"), 2}});
    rewriter.add_input("mask", {.dtype = DType::Bool, .shape = SymShape{Dim::symbol("batch")}});
    rewriter.commit();
  }
  void write(const std::string& file, const std::string& bytes) const {
    const std::filesystem::path path = folder_ / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
  }
  void write_sets() const {
    write("test_data_set_0/input_0.pb", tensor_proto("x", 1, {1, 2}, floats({1, 2})));
    write("test_data_set_0/input_1.pb", tensor_proto("mask", 9, {1}, std::string(1, '\x01')));
    // Of two samples, and without names that the model knows: by number.
    write("test_data_set_1/input_0.pb", tensor_proto("", 1, {2, 2}, floats({3, 4, 5, 6})));
    write("test_data_set_1/input_1.pb", tensor_proto("m", 9, {2}, std::string("\x00\x01", 2)));
    write("test_data_set_1/output_0.pb", "not looked at");
  }
  TensorData load() const { return TensorData::load(folder_ / "", graph_.inputs(), {}); }

  test::TempDir folder_;
  Graph graph_;
};

TEST_F(InputSets, AreJoinedAlongTheFirstAxis) {
  write_sets();
  EXPECT_TRUE(is_tensor_file(folder_ / ""));
  const TensorData data = load();
  EXPECT_EQ(data.samples(), 3);
  EXPECT_TRUE(identical(data.arrays().at("x"), Tensor::from<float>({3, 2}, {1, 2, 3, 4, 5, 6})));
  EXPECT_EQ(data.arrays().at("mask").int_at(1), 0);
  EXPECT_EQ(data.digest(), digest_of_data(folder_ / ""));
  // The digest is that of what is read, in its order.
  const std::string before = data.digest();
  write("test_data_set_1/output_0.pb", "still not");
  EXPECT_EQ(load().digest(), before);
  write("test_data_set_0/input_0.pb", tensor_proto("x", 1, {1, 2}, floats({1, 3})));
  EXPECT_NE(load().digest(), before);
}

TEST_F(InputSets, MayLieInTheFolderItselfOrBeOneFile) {
  write("input_0.pb",
        tensor_proto("mask", 9, {1}, std::string(1, '\x01')));  // the name counts, not the number
  write("input_1.pb", tensor_proto("x", 1, {1, 2}, floats({7, 8})));
  EXPECT_EQ(load().arrays().at("x").at(1), 8);
  Graph one;
  Rewriter rewriter(one);
  rewriter.add_input("y", {.dtype = DType::F32, .shape = {}});
  rewriter.commit();
  const TensorData data = TensorData::load(folder_ / "input_1.pb", one.inputs(), {});
  EXPECT_EQ(data.arrays().at("y").at(0), 7);
}

TEST_F(InputSets, SaysWhichFileDoesNotFit) {
  const auto refused = [&](const std::string& file, const std::string& bytes, const std::string& part) {
    write_sets();
    write(file, bytes);
    EXPECT_QUERN_ERROR(load(), ErrorCode::BadData, std::filesystem::path(file).filename().string(), part);
    std::filesystem::remove(folder_ / file);
  };
  const std::string whole = tensor_proto("x", 1, {1, 2}, floats({1, 2}));
  refused("test_data_set_1/input_0.pb", whole.substr(0, whole.size() - 3), "truncated");
  refused("test_data_set_1/input_0.pb", "", "is empty");
  refused("test_data_set_1/input_0.pb", "a text", "no TensorProto");
  refused("test_data_set_1/input_0.pb", tensor_proto("x", 7, {1, 1}, std::string(8, '\0')), "'x' is f32");
  refused("test_data_set_1/input_0.pb", tensor_proto("x", 1, {1, 3}, floats({1, 2, 3})), "[1, 3]");
  refused("test_data_set_1/input_0.pb", tensor_proto("x", 1, {}, floats({1})), "single number");
  refused("test_data_set_1/input_2.pb", whole, "another file");
  refused("test_data_set_0/input_9.pb", tensor_proto("z", 1, {1}, floats({1})), "the model has not");
}

TEST_F(InputSets, DamagedDataIsCalledByTheFile) {
  write_sets();
  write("test_data_set_0/input_0.pb", tensor_proto("x", 1, {1, 2}, floats({1})));
  EXPECT_QUERN_ERROR(load(), ErrorCode::InvalidModel, "test_data_set_0/input_0.pb", "[1, 2]");
}

TEST_F(InputSets, SaysWhatIsMissing) {
  write_sets();
  std::filesystem::remove(folder_ / "test_data_set_1/input_1.pb");
  EXPECT_QUERN_ERROR(load(), ErrorCode::BadData, "test_data_set_1/input_1.pb", "'mask'");
  const test::TempDir empty;
  EXPECT_QUERN_ERROR(TensorData::load(empty / "", graph_.inputs(), {}), ErrorCode::BadData, "input_0.pb");
}

}  // namespace
}  // namespace quern::calibrate
