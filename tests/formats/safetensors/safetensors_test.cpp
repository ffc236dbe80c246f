#include "formats/safetensors/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/expect_error.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace quern::safetensors {
namespace {

using test::TempDir;

std::filesystem::path fixture() {
  return test::source_path("tests/formats/safetensors/fixtures/types.safetensors");
}

File parse_text(const std::string& text) {
  auto owner = std::make_shared<std::string>(text);
  return parse(std::as_bytes(std::span(owner->data(), owner->size())), owner, "t.safetensors");
}

std::string with_header(const std::string& header, const std::string& data) {
  std::string text(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(text.data(), &size, 8);
  return text + header + data;
}

TEST(Safetensors, ReadsWhatTheReferenceImplementationWrote) {
  const File file = read(fixture());
  EXPECT_EQ(file.tensors.size(), 15U);
  for (const char* name : {"i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "bf16"}) {
    EXPECT_EQ(file.at(name).shape(), (Shape{2, 3})) << name;
    EXPECT_EQ(file.at(name).to_floats(), (std::vector<float>{0, 1, 2, 3, 4, 5})) << name;
    EXPECT_TRUE(file.at(name).is_view()) << name;
  }
  EXPECT_EQ(file.at("bool").to_ints(), (std::vector<int64_t>{0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(file.at("scalar").shape(), Shape{});
  EXPECT_EQ(file.at("scalar").at(0), 1.5);
  EXPECT_EQ(file.at("empty").shape(), (Shape{0, 3}));
  EXPECT_EQ(file.metadata.at("format"), "pt");
  EXPECT_EQ(file.metadata.at("žluť"), "😀");
  EXPECT_QUERN_ERROR(file.at("x"), ErrorCode::BadData, "'x'");
}

TEST(Safetensors, WhatIsWrittenIsReadBackAndDeterministic) {
  const TempDir dir;
  File file = read(fixture());
  file.tensors["fp8"] = Tensor::zeros(DType::F8E4M3, {5});
  file.tensors["fp4"] = Tensor::zeros(DType::F4E2M1, {2, 5});
  write(dir / "a", file);
  write(dir / "b", file);
  EXPECT_TRUE(test::read_text(dir / "a") == test::read_text(dir / "b"));
  const File back = read(dir / "a");
  EXPECT_EQ(back.metadata, file.metadata);
  ASSERT_EQ(back.tensors.size(), file.tensors.size());
  for (const auto& [name, tensor] : file.tensors) EXPECT_TRUE(identical(back.at(name), tensor)) << name;
}

TEST(Safetensors, DtypesThatTheFormatLacksAreRefused) {
  const TempDir dir;
  File file;
  file.tensors["w"] = Tensor::zeros(DType::I4, {2});
  EXPECT_QUERN_ERROR(write(dir / "a", file), ErrorCode::Unsupported, "'w'", "i4");
  EXPECT_TRUE(dir.names().empty());
}

TEST(Safetensors, TheMedusaHeadsAreRead) {
  QUERN_NEEDS_SHARED("models/storyteller-medusa/medusa_heads.safetensors");
  const File file = read(test::shared_path("models/storyteller-medusa/medusa_heads.safetensors"));
  EXPECT_EQ(file.tensors.size(), 9U);
  EXPECT_EQ(file.at("0.1.weight").shape(), (Shape{4096, 192}));
}

TEST(Safetensors, MalformedFilesAreErrors) {
  const auto corrupt = [](const std::string& text, const std::string& part) {
    EXPECT_QUERN_ERROR(parse_text(text), ErrorCode::Corrupt, "t.safetensors", part);
  };
  corrupt("", "shorter than 8");
  corrupt(std::string("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F{}", 10), "truncated");
  corrupt(with_header("", ""), "JSON");
  corrupt(with_header("[]", ""), "no JSON object");
  corrupt(with_header("{\"a\":1}", ""), "'a'");
  corrupt(with_header("{\"a\":{}}", ""), "dtype");
  corrupt(with_header(std::string(1000000, '['), ""), "nested");
  corrupt(with_header(R"({"__metadata__":{"a":1}})", ""), "__metadata__");
  const auto one = [](const std::string& shape, const std::string& offsets) {
    return with_header(R"({"w":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}",
                       "aaaabbbb");
  };
  EXPECT_EQ(parse_text(one("[2]", "[0,8]")).at("w").size(), 2);
  corrupt(one("[1]", "[0,4]"), "4 bytes of data and the file has 8");
  corrupt(one("[1]", "[4,8]"), "byte 0");
  corrupt(one("[3]", "[0,12]"), "truncated");
  corrupt(one("[-2]", "[0,8]"), "whole number");
  corrupt(one("[2.0]", "[0,8]"), "whole number");
  corrupt(one("[2]", "[8,0]"), "'w'");
  corrupt(one("[2]", "[0]"), "wrong type");
  corrupt(one("2", "[0,8]"), "wrong type");
  corrupt(one("[18446744073709551615]", "[0,8]"), "too large");
  EXPECT_QUERN_ERROR(parse_text(one("[3]", "[0,8]")), ErrorCode::InvalidModel, "takes 12 bytes", "'w'");
  EXPECT_QUERN_ERROR(parse_text(one("[4611686018427387904,4611686018427387904]", "[0,8]")),
                     ErrorCode::InvalidModel);
  corrupt(with_header(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                      R"("w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                      "aaaabbbb"),
          "two tensors");
  EXPECT_QUERN_ERROR(
      parse_text(with_header(R"({"w":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}})", "aaaabbbb")),
      ErrorCode::Unsupported, "C64", "'w'");
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const std::string whole = test::read_text(fixture());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_QUERN_ERROR(parse_text(whole.substr(0, size)), ErrorCode::Corrupt, "t.safetensors");
  }
}

}  // namespace
}  // namespace quern::safetensors
