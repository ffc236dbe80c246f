// Damaged and nonsensical artifacts, through the program: one line that names the file, exit status 3, no
// text made of damaged weights, and neither a crash, nor a hang, nor memory that the file does not justify.
#include <gtest/gtest.h>

#include <cstring>

#include "formats/artifact/artifact.h"
#include "formats/artifact/header.h"
#include "formats/file/checksum.h"
#include "tests/cli/quern_binary.h"

namespace quern::test {
namespace {

const ProgramRun kFrugal = {.most_memory = uint64_t{512} << 20, .limit = std::chrono::seconds(60)};

class BadArtifact : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const TempDir folder;
    const std::string path = (folder / "m.quern").string();
    ASSERT_EQ(quern({"convert", example("model.onnx"), "-o", path, "--weights", "int4", "-q"}).status, 0);
    whole_ = read_text(path);
    sections_ = artifact::Artifact::open(path).sections();
  }
  // Status 3 from everything that reads weights, in one line that has all parts.
  void refused(const std::string& bytes, std::vector<std::string> parts) const {
    write_text(folder_ / "bad.quern", bytes);
    const std::string path = (folder_ / "bad.quern").string();
    parts.emplace_back("bad.quern");
    expect_refused(quern({"inspect", path, "--verify"}, kFrugal), 3, parts);
    expect_refused(quern({"generate", path, "--ids", "1,2", "-n", "2"}, kFrugal), 3, parts);
    EXPECT_EQ(folder_.names(), std::vector<std::string>{"bad.quern"});
  }
  static std::string flipped(size_t byte) {
    std::string damaged = whole_;
    damaged[byte] = static_cast<char>(damaged[byte] ^ 0x10);
    return damaged;
  }
  static std::string whole_;
  static std::vector<artifact::Artifact::Section> sections_;
  TempDir folder_;
};
std::string BadArtifact::whole_;
std::vector<artifact::Artifact::Section> BadArtifact::sections_;

TEST_F(BadArtifact, Empty) {
  refused("", {"empty"});
}

TEST_F(BadArtifact, AnotherFile) {
  refused("a text of some length, which has no business to be here", {"not a quern artifact"});
}

TEST_F(BadArtifact, Truncated) {
  for (const size_t size : {size_t{5}, size_t{63}, size_t{64}, whole_.size() / 2, whole_.size() - 1}) {
    refused(whole_.substr(0, size), {});
  }
  refused(whole_ + "x", {"bytes where its header says"});
}

TEST_F(BadArtifact, BitFlippedInTheHeader) {
  for (const size_t byte : {13, 16, 24, 32, 40, 50, 61}) refused(flipped(byte), {"header is damaged"});
}

TEST_F(BadArtifact, BitFlippedInTheManifest) {
  const auto header = artifact::decode_header(std::as_bytes(std::span(whole_)));
  for (const uint64_t share : {0, 1, 2, 3})
    refused(flipped(header.manifest_offset + share * header.manifest_size / 4), {"manifest", "damaged"});
}

TEST_F(BadArtifact, BitFlippedInAWeight) {
  for (size_t i = 0; i < sections_.size(); i += 1 + sections_.size() / 6) {
    refused(flipped(sections_[i].offset + sections_[i].size / 2), {sections_[i].name, "checksum"});
  }
}

TEST_F(BadArtifact, OfANewerVersionIsUnsupported) {
  std::string newer = whole_;
  newer[8] = 99;
  write_text(folder_ / "newer.quern", newer);
  expect_refused(quern({"inspect", (folder_ / "newer.quern").string()}), 4, {"newer.quern", "version 99"});
}

// --- Manifests of valid checksums that make no sense. Numbers of fields: formats/artifact/artifact.proto.

std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}

std::string number(int field, uint64_t value) {
  return varint(static_cast<uint64_t>(field) << 3) + varint(value);
}

std::string bytes(int field, const std::string& value) {
  return varint(static_cast<uint64_t>(field) << 3 | 2) + varint(value.size()) + value;
}

constexpr uint64_t kF32 = 1;
constexpr uint64_t kI64 = 11;

// One dimension of two.
std::string value(const std::string& name, uint64_t element_type) {
  const std::string shape = bytes(1, number(1, 2 << 1));  // zigzag
  return bytes(3, bytes(1, name) + bytes(2, number(1, element_type) + bytes(2, shape)));
}

std::string constant(const std::string& name, const std::string& content) {
  return bytes(3, bytes(1, name) + bytes(3, content));
}

std::string node(const std::string& op, const std::string& inputs, const std::string& outputs) {
  return bytes(5, bytes(1, op) + number(3, 14) + bytes(5, inputs) + bytes(6, outputs));
}

// A graph whose input has the id 1, and the values after it those that follow.
std::string graph(const std::string& values, const std::string& nodes, uint64_t output) {
  return bytes(1, "g") + number(2, 1) + value("x", kF32) + values + number(4, 1) + nodes +
         bytes(6, number(1, output) + bytes(2, "y")) + bytes(7, number(2, 17));
}

std::string file_of(const std::string& manifest) {
  artifact::Header header;
  header.version = artifact::kFormatVersion;
  header.file_size = artifact::kHeaderSize + manifest.size();
  header.manifest_offset = artifact::kHeaderSize;
  header.manifest_size = manifest.size();
  header.manifest_crc = crc32c(std::as_bytes(std::span(manifest)));
  const auto head = artifact::encode(header);
  return std::string(reinterpret_cast<const char*>(head.data()), head.size()) + manifest;
}

std::string file_of_graph(const std::string& graph, const std::string& sections = "") {
  return file_of(sections + bytes(3, graph));
}

std::string section(uint64_t offset, uint64_t size) {
  return bytes(2, number(1, offset) + number(2, size) + std::string("\x1D\0\0\0\0", 5));
}

TEST_F(BadArtifact, TheHandMadeManifestIsOneWhereItMakesSense) {
  write_text(folder_ / "good.quern", file_of_graph(graph(value("y", kF32), node("Relu", "\x01", "\x02"), 2)));
  const ProgramResult result = quern({"inspect", (folder_ / "good.quern").string(), "--verify"}, kFrugal);
  EXPECT_EQ(result.status, 0) << result.err;
}

TEST_F(BadArtifact, Cyclic) {
  refused(file_of_graph(graph(value("a", kF32) + value("y", kF32),
                              node("Relu", "\x03", "\x02") + node("Relu", "\x02", "\x03"), 3)),
          {});
}

TEST_F(BadArtifact, ValuesThatAreNowhere) {
  refused(file_of_graph(graph(value("y", kF32), node("Relu", "\x09", "\x02"), 2)), {"9"});
  refused(file_of_graph(graph(value("y", kF32), node("Relu", "\x01", "\x02"), 7)), {"7"});
}

TEST_F(BadArtifact, WronglyTyped) {
  refused(file_of_graph(graph(value("y", kI64), node("Relu", "\x01", "\x02"), 2)), {"'y'"});
}

TEST_F(BadArtifact, HugeClaims) {
  // A tensor of 2^40 elements in four bytes, and one in a section that the file does not have.
  const std::string huge = varint(uint64_t{1} << 40);
  const auto with = [&](const std::string& tensor) {
    return graph(constant("c", bytes(1, tensor)) + value("y", kF32), node("Add", "\x01\x02", "\x03"), 3);
  };
  refused(file_of_graph(with(number(1, kF32) + bytes(2, huge) + bytes(4, "1234"))), {"'c'"});
  refused(file_of_graph(with(number(1, kF32) + bytes(2, "\x02") + number(3, 5))), {"section 5"});
  refused(file_of_graph(with(number(1, kF32) + bytes(2, huge) + number(3, 0)), section(64, 8)), {});
  refused(
      file_of_graph(with(number(1, kF32) + bytes(2, "\x02") + number(3, 0)), section(64, uint64_t{1} << 60)),
      {});
  // Packed weights of 2^40 rows.
  const std::string packed = number(1, 1) + number(2, uint64_t{1} << 40) + number(3, 4096) + number(6, 0);
  refused(file_of_graph(
              graph(constant("c", bytes(3, packed)) + value("y", kF32), node("Add", "\x01\x02", "\x03"), 3),
              section(64, 8)),
          {"'c'"});
}

TEST_F(BadArtifact, NestedTooDeep) {
  std::string inner = graph(value("y", kF32), node("Relu", "\x01", "\x02"), 2);
  for (int i = 0; i < 2000; ++i) {
    inner = graph(value("y", kF32),
                  bytes(5, bytes(1, "If") + bytes(7, bytes(1, "then_branch") + bytes(9, inner))), 2);
  }
  refused(file_of_graph(inner), {});
}

}  // namespace
}  // namespace quern::test
