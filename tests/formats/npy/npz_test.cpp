#include "formats/npy/npz.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/expect_error.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace quern::npy {
namespace {

using test::TempDir;

std::filesystem::path fixture(const std::string& name) {
  return test::source_path("tests/formats/npy/fixtures/" + name);
}

Archive parse_text(const std::string& text) {
  auto owner = std::make_shared<std::string>(text);
  return Archive::parse(std::as_bytes(std::span(owner->data(), owner->size())), owner, "t.npz");
}

TEST(Npz, ReadsWhatNumpyStoredAndDeflated) {
  for (const char* name : {"stored.npz", "deflated.npz"}) {
    const Archive archive = Archive::open(fixture(name));
    EXPECT_EQ(archive.names(), (std::vector<std::string>{"x", "žluť"}));
    EXPECT_EQ(archive.read("x").shape(), (Shape{2, 3}));
    EXPECT_EQ(archive.read("x").at(5), 5.0);
    const Tensor numbers = archive.read("žluť");
    ASSERT_EQ(numbers.size(), 300);
    for (int64_t i = 0; i < 300; ++i) EXPECT_EQ(numbers.int_at(i), i % 7);
    EXPECT_QUERN_ERROR(archive.read("y"), ErrorCode::BadData, "no array 'y'", name);
  }
}

TEST(Npz, WhatIsWrittenIsReadBackAndDeterministic) {
  const TempDir dir;
  std::vector<int64_t> values(100'000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(i * i % 1000);
  const std::map<std::string, Tensor> arrays = {
      {"a", Tensor::from<float>({3}, {1, 2, 3})},
      {"numbers", Tensor::from<int64_t>({100, 1000}, std::span<const int64_t>(values))},
      {"text", Tensor::from_strings({2}, {"x", "žluť"})},
      {"nothing", Tensor::zeros(DType::F32, {0})}};
  for (const int level : {0, 6}) {
    write_archive(dir / "a.npz", arrays, {.compression_level = level});
    write_archive(dir / "b.npz", arrays, {.compression_level = level});
    EXPECT_TRUE(test::read_text(dir / "a.npz") == test::read_text(dir / "b.npz"));
    const Archive archive = Archive::open(dir / "a.npz");
    EXPECT_EQ(archive.names().size(), arrays.size());
    for (const auto& [name, tensor] : arrays) {
      const Tensor back = archive.read(name);
      if (tensor.dtype() == DType::String) {
        EXPECT_EQ(back.strings(), tensor.strings());
      } else {
        EXPECT_TRUE(identical(back, tensor)) << name;
        EXPECT_EQ(back.is_view(), tensor.size() > 0) << name;
      }
    }
  }
}

TEST(Npz, EveryTruncationIsAnError) {
  const std::string whole = test::read_text(fixture("deflated.npz"));
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_QUERN_ERROR(parse_text(whole.substr(0, size)), ErrorCode::Corrupt, "t.npz");
  }
}

TEST(Npz, FlippedBitsNeverPassUnnoticed) {
  const std::string whole = test::read_text(fixture("deflated.npz"));
  const Archive good = parse_text(whole);
  for (size_t i = 0; i < whole.size() * 8; i += 3) {
    std::string damaged = whole;
    damaged[i / 8] = static_cast<char>(damaged[i / 8] ^ (1 << (i % 8)));
    try {
      const Archive archive = parse_text(damaged);
      for (const std::string& name : archive.names()) {
        const Tensor tensor = archive.read(name);  // time stamps and names are not protected; contents are
        if (good.contains(name)) {
          EXPECT_TRUE(identical(tensor, good.read(name))) << i;
        }
      }
    } catch (const Error&) {
    }
  }
}

// The sizes in the directory of "deflated.npz" are raised: nothing of that size may be allocated.
TEST(Npz, AClaimThatThePackedBytesCannotHoldIsRefused) {
  std::string text = test::read_text(fixture("deflated.npz"));
  const size_t directory = text.find("PK\x01\x02");
  ASSERT_NE(directory, std::string::npos);
  const uint32_t huge = 0xFFFFFFF0;
  std::memcpy(text.data() + directory + 24, &huge, 4);
  EXPECT_QUERN_ERROR(parse_text(text).read("x"), ErrorCode::Corrupt, "cannot hold");
}

TEST(Npz, MembersOverTheLimitAreRefused) {
  const Archive archive = Archive::open(fixture("deflated.npz"), {.max_member_bytes = 1000});
  EXPECT_QUERN_ERROR(archive.read("žluť"), ErrorCode::BadData, "over the limit");
  EXPECT_EQ(archive.read("x").size(), 6);
}

TEST(Npz, AFileThatIsNoArchiveIsAnError) {
  EXPECT_QUERN_ERROR(Archive::open(fixture("f4.npy")), ErrorCode::Corrupt, "f4.npy", "directory");
}

}  // namespace
}  // namespace quern::npy
