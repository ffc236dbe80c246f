#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "formats/onnx/export.h"
#include "formats/onnx/import.h"
#include "tests/formats/onnx/onnx_text.h"
#include "tests/support/expect_error.h"
#include "tests/support/graph_compare.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace quern::onnx_format {
namespace {

namespace fs = std::filesystem;
using quern::test::TempDir;
using quern::test::write_text;
using test::parse_text;

struct External {
  std::string location;
  std::string offset = "";
  std::string length = "";
};

// A model with one float initializer "w" [2, 2] in external data.
void write_model(const fs::path& path, const External& external) {
  auto model = parse_text("g (float[2, 2] x) => (float[2, 2] y) { y = Add(x, w) }");
  auto& tensor = *model.mutable_graph()->add_initializer();
  tensor.set_name("w");
  tensor.set_data_type(onnx::TensorProto::FLOAT);
  tensor.add_dims(2);
  tensor.add_dims(2);
  tensor.set_data_location(onnx::TensorProto::EXTERNAL);
  const auto add = [&](const char* key, const std::string& value) {
    if (value.empty()) return;
    auto& entry = *tensor.add_external_data();
    entry.set_key(key);
    entry.set_value(value);
  };
  add("location", external.location);
  add("offset", external.offset);
  add("length", external.length);
  write_text(path, model.SerializeAsString());
}

std::string floats(std::vector<float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

Tensor weight(const ImportedModel& model) {
  return *model.graph->find_value("w")->tensor();
}

TEST(OnnxExternalData, WhatOnnxItselfSavedIsRead) {
  const auto model = import_model(quern::test::source_path("tests/formats/onnx/fixtures/external.onnx"));
  for (int64_t i = 0; i < 3; ++i) {
    const Tensor& tensor = *model.graph->find_value("w" + std::to_string(i))->tensor();
    ASSERT_EQ(tensor.size(), 16 * (i + 1));
    EXPECT_TRUE(tensor.is_view());
    for (int64_t k = 0; k < tensor.size(); ++k) EXPECT_EQ(tensor.at(k), static_cast<double>(k));
  }
  EXPECT_EQ(model.graph->find_value("half")->tensor()->at(6), 6.0);
  ASSERT_EQ(model.files.size(), 2U);
  EXPECT_EQ(model.files[1].filename(), "external.weights");
}

TEST(OnnxExternalData, OffsetAndLengthAreOptional) {
  const TempDir dir;
  write_text(dir / "w.bin", floats({9, 1, 2, 3, 4}));
  write_model(dir / "m.onnx", {"w.bin"});
  EXPECT_EQ(weight(import_model(dir / "m.onnx")).to_floats(), (std::vector<float>{9, 1, 2, 3}));
  write_model(dir / "m.onnx", {"w.bin", "4", "16"});
  EXPECT_EQ(weight(import_model(dir / "m.onnx")).to_floats(), (std::vector<float>{1, 2, 3, 4}));
  write_model(dir / "m.onnx", {"w.bin", "1"});
  EXPECT_FALSE(weight(import_model(dir / "m.onnx")).is_view());
}

TEST(OnnxExternalData, SubFoldersAreAllowed) {
  const TempDir dir;
  fs::create_directory(dir / "data");
  write_text(dir / "data/w.bin", floats({1, 2, 3, 4}));
  write_model(dir / "m.onnx", {"./data/w.bin"});
  EXPECT_EQ(weight(import_model(dir / "m.onnx")).at(3), 4.0);
}

TEST(OnnxExternalData, MissingAndShortFilesAreNamed) {
  const TempDir dir;
  write_model(dir / "m.onnx", {"w.bin"});
  EXPECT_QUERN_ERROR(import_model(dir / "m.onnx"), ErrorCode::InvalidModel, "'w'", "w.bin", "m.onnx",
                     "missing");
  write_text(dir / "w.bin", floats({1, 2, 3}));
  EXPECT_QUERN_ERROR(import_model(dir / "m.onnx"), ErrorCode::Corrupt, "'w'", "w.bin", "too short");
  write_model(dir / "m.onnx", {"w.bin", "18446744073709551615"});
  EXPECT_QUERN_ERROR(import_model(dir / "m.onnx"), ErrorCode::Corrupt, "'w'", "too short");
  write_text(dir / "w.bin", "");
  EXPECT_QUERN_ERROR(import_model(dir / "m.onnx"), ErrorCode::Corrupt, "'w'", "too short");
}

TEST(OnnxExternalData, NonsenseIsRefused) {
  const TempDir dir;
  write_text(dir / "w.bin", floats({1, 2, 3, 4}));
  write_model(dir / "m.onnx", {"w.bin", "-4"});
  EXPECT_QUERN_ERROR(import_model(dir / "m.onnx"), ErrorCode::InvalidModel, "'w'", "offset", "-4");
  write_model(dir / "m.onnx", {"w.bin", "0", "12"});
  EXPECT_QUERN_ERROR(import_model(dir / "m.onnx"), ErrorCode::InvalidModel, "'w'", "12 bytes");
  write_model(dir / "m.onnx", {""});
  EXPECT_QUERN_ERROR(import_model(dir / "m.onnx"), ErrorCode::InvalidModel, "'w'");
  write_model(dir / "m.onnx", {"."});
  EXPECT_QUERN_ERROR(import_model(dir / "m.onnx"), ErrorCode::Io, "folder");
}

TEST(OnnxExternalData, NothingOutsideTheFolderIsOpened) {
  const TempDir dir;
  fs::create_directory(dir / "model");
  write_text(dir / "secret", floats({1, 2, 3, 4}));
  const fs::path model = dir / "model/m.onnx";
  for (const std::string& location :
       {std::string("../secret"), (dir / "secret").string(), std::string("a/../../secret")}) {
    write_model(model, {location});
    EXPECT_QUERN_ERROR(import_model(model), ErrorCode::InvalidModel, "'w'", location);
  }
  fs::create_symlink("../secret", dir / "model/link");
  write_model(model, {"link"});
  EXPECT_QUERN_ERROR(import_model(model), ErrorCode::InvalidModel, "'w'", "link", "outside");
  fs::create_directory_symlink("..", dir / "model/up");
  write_model(model, {"up/secret"});
  EXPECT_QUERN_ERROR(import_model(model), ErrorCode::InvalidModel, "'w'", "outside");
  // The name of a neighbouring folder begins like that of the model's.
  fs::create_directory(dir / "model2");
  write_text(dir / "model2/secret", floats({1, 2, 3, 4}));
  fs::create_symlink("../model2/secret", dir / "model/near");
  write_model(model, {"near"});
  EXPECT_QUERN_ERROR(import_model(model), ErrorCode::InvalidModel, "outside");
}

// A cache of downloads keeps the files under their digests and a folder of links to them.
TEST(OnnxExternalData, ACacheOfLinksWorks) {
  const TempDir dir;
  fs::create_directories(dir / "blobs");
  fs::create_directories(dir / "snapshots/1");
  write_model(dir / "blobs/abc", {"w.bin"});
  write_text(dir / "blobs/def", floats({1, 2, 3, 4}));
  fs::create_symlink("../../blobs/abc", dir / "snapshots/1/m.onnx");
  fs::create_symlink("../../blobs/def", dir / "snapshots/1/w.bin");
  EXPECT_EQ(weight(import_model(dir / "snapshots/1/m.onnx")).at(3), 4.0);
}

TEST(OnnxExternalData, AModelFromMemoryHasNone) {
  const TempDir dir;
  write_text(dir / "w.bin", floats({1, 2, 3, 4}));
  write_model(dir / "m.onnx", {"w.bin"});
  EXPECT_QUERN_ERROR(test::import_bytes(quern::test::read_text(dir / "m.onnx")), ErrorCode::InvalidModel,
                     "'w'", "memory");
}

TEST(OnnxExternalData, ExportPutsLargeTensorsIntoADataFile) {
  const TempDir dir;
  auto proto = parse_text("g (float[1] x) => (float[1] y) { y = Relu(x) }");
  proto.set_producer_name("a test");
  for (const int64_t size : {3, 1000, 500'000}) {
    auto& tensor = *proto.mutable_graph()->add_initializer();
    tensor.set_name("w" + std::to_string(size));
    tensor.set_data_type(onnx::TensorProto::FLOAT);
    tensor.add_dims(size);
    tensor.set_raw_data(std::string(static_cast<size_t>(size) * 4, '\1'));
  }
  const auto model = test::import_proto(proto);
  export_model(*model.graph, dir / "inline.onnx");
  EXPECT_EQ(dir.names().size(), 1U);
  export_model(*model.graph, dir / "m.onnx", {.external_over = 100'000});
  EXPECT_EQ(fs::file_size(dir / "m.onnx.data"), 4096U + 2'000'000U);
  EXPECT_LT(fs::file_size(dir / "m.onnx"), 1000U);
  const auto again = import_model(dir / "m.onnx");
  EXPECT_TRUE(quern::test::same_graph(*model.graph, *again.graph));
  for (const Value* value : again.graph->constants())
    EXPECT_EQ(value->tensor()->is_view(), value->tensor()->size() > 3);
  // Exporting over the very files that the graph is mapped from.
  export_model(*again.graph, dir / "m.onnx", {.external_over = 100'000});
  EXPECT_TRUE(quern::test::same_graph(*again.graph, *import_model(dir / "m.onnx").graph));
}

int64_t resident_bytes() {
  int64_t total = 0;
  int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

void extend_sparsely(const fs::path& path, int64_t size) {
  if (::truncate(path.c_str(), size) != 0) throw_error(ErrorCode::Io, "no sparse files here");
}

TEST(OnnxExternalData, A30GigabyteModelIsNotRead) {
  const TempDir dir;
  const int64_t size = int64_t{30} << 30;
  auto model = parse_text("g (float[1] x) => (float[1] y) { y = Relu(x) }");
  auto& tensor = *model.mutable_graph()->add_initializer();
  tensor.set_name("w");
  tensor.set_data_type(onnx::TensorProto::FLOAT);
  tensor.add_dims(size / 4);
  tensor.set_data_location(onnx::TensorProto::EXTERNAL);
  auto& entry = *tensor.add_external_data();
  entry.set_key("location");
  entry.set_value("w.bin");
  write_text(dir / "m.onnx", model.SerializeAsString());
  write_text(dir / "w.bin", "");
  extend_sparsely(dir / "w.bin", size);
  const int64_t before = resident_bytes();
  const auto imported = import_model(dir / "m.onnx");
  EXPECT_EQ(weight(imported).byte_size(), size);
  EXPECT_LT(resident_bytes() - before, int64_t{16} << 20);
}

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

std::string field(int number, uint64_t length) {
  std::string out;
  append_varint(out, static_cast<uint64_t>(number) << 3 | 2);
  append_varint(out, length);
  return out;
}

// A model file that ends in a hole: the raw_data of a float tensor "w" of `size` bytes, 4-byte aligned.
void write_huge_inline_model(const fs::path& path, uint64_t size) {
  const auto model = parse_text("g (float[1] x) => (float[1] y) { y = Relu(x) }");
  onnx::TensorProto header;
  header.set_data_type(onnx::TensorProto::FLOAT);
  header.add_dims(static_cast<int64_t>(size / 4));
  header.set_name("w");
  std::string file;
  for (int pad = 0; pad < 4; ++pad) {
    header.set_doc_string(std::string(static_cast<size_t>(pad) + 1, 'x'));
    const std::string tensor = header.SerializeAsString() + field(9, size);
    const std::string graph = model.graph().SerializeAsString() + field(5, tensor.size() + size) + tensor;
    onnx::ModelProto rest = model;
    rest.clear_graph();
    file = rest.SerializeAsString() + field(7, graph.size() + size) + graph;
    if (file.size() % 4 == 0) break;
  }
  write_text(path, file);
  extend_sparsely(path, static_cast<int64_t>(file.size() + size));
}

// Protobuf itself parses no message of more than 2 GiB.
TEST(OnnxImport, AnInlineModelOf5GigabytesIsNotRead) {
  const TempDir dir;
  const uint64_t size = uint64_t{5} << 30;
  write_huge_inline_model(dir / "m.onnx", size);
  const int64_t before = resident_bytes();
  const auto imported = import_model(dir / "m.onnx");
  EXPECT_EQ(weight(imported).byte_size(), static_cast<int64_t>(size));
  EXPECT_TRUE(weight(imported).is_view());
  EXPECT_LT(resident_bytes() - before, int64_t{16} << 20);
}

}  // namespace
}  // namespace quern::onnx_format
