// A model larger than the memory goes from ONNX into an artifact.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "formats/artifact/artifact.h"
#include "formats/file/checksum.h"
#include "formats/onnx/import.h"
#include "tests/formats/onnx/onnx_text.h"
#include "tests/support/temp_dir.h"

namespace quern::onnx_format {
namespace {

namespace fs = std::filesystem;

constexpr int kTensors = 32;
constexpr int64_t kTensorBytes = int64_t{16} << 20;
constexpr int64_t kAllowed = int64_t{64} << 20;  // an eighth of the model

// 512 MiB of weights in one external file that is a hole.
void write_large_model(const fs::path& path) {
  auto model = test::parse_text("g (float[1] x) => (float[1] y) { y = Relu(x) }");
  for (int i = 0; i < kTensors; ++i) {
    auto& tensor = *model.mutable_graph()->add_initializer();
    tensor.set_name("w" + std::to_string(i));
    tensor.set_data_type(onnx::TensorProto::FLOAT);
    tensor.add_dims(kTensorBytes / 4);
    tensor.set_data_location(onnx::TensorProto::EXTERNAL);
    const auto add = [&](const char* key, const std::string& value) {
      auto& entry = *tensor.add_external_data();
      entry.set_key(key);
      entry.set_value(value);
    };
    add("location", "weights");
    add("offset", std::to_string(i * kTensorBytes));
  }
  quern::test::write_text(path / "m.onnx", model.SerializeAsString());
  quern::test::write_text(path / "weights", "");
  ASSERT_EQ(::truncate((path / "weights").c_str(), kTensors * kTensorBytes), 0);
}

// The greatest resident size so far.
int64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

// In a process of its own, so that what other tests use does not count. The exit status tells.
int convert_within_limit(const fs::path& folder) {
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak starts anew
  const int64_t before = peak_bytes();
  try {
    const ImportedModel model = import_model(folder / "m.onnx");
    artifact::Writer writer(folder / "a.quern");
    writer.write_graph(*model.graph, [](const Value& value) -> Constant {
      const Tensor& weight = *value.tensor();
      const uint32_t sum =
          crc32c({weight.bytes(), static_cast<size_t>(weight.byte_size())});  // reads all of it
      Tensor small = Tensor::zeros(DType::I8, {weight.size() / 16});
      small.set(0, sum % 100);
      return small;
    });
    writer.finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  const int64_t used = peak_bytes() - before;
  if (used <= kAllowed) return 0;
  std::fprintf(stderr, "%lld MiB used\n", static_cast<long long>(used >> 20));
  return 1;
}

TEST(OnnxToArtifact, MemoryIsThatOfOneTensor) {
  const quern::test::TempDir dir = quern::test::TempDir::in_memory();
  write_large_model(dir.path());
  const pid_t child = ::fork();
  if (child == 0) ::_exit(convert_within_limit(dir.path()));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace quern::onnx_format
