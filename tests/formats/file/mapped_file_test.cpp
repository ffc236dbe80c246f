#include "formats/file/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ir/tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace quern {
namespace {

using test::TempDir;

TEST(MappedFile, BytesAreThoseOfTheFile) {
  const TempDir dir;
  test::write_text(dir / "a", "hello");
  const auto file = MappedFile::open(dir / "a");
  ASSERT_EQ(file->size(), 5U);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file->bytes().data()), 5), "hello");
}

TEST(MappedFile, AnEmptyFileIsEmpty) {
  const TempDir dir;
  test::write_text(dir / "a", "");
  const auto file = MappedFile::open(dir / "a");
  EXPECT_EQ(file->size(), 0U);
  file->drop_pages(file->bytes());
}

TEST(MappedFile, ATensorKeepsTheMappingAlive) {
  const TempDir dir;
  test::write_text(dir / "a", std::string("\x00\x00\x80\x3f", 4));
  auto file = MappedFile::open(dir / "a");
  const Tensor tensor = Tensor::view(DType::F32, {1}, file, file->bytes().data(), 4);
  file.reset();
  std::filesystem::remove(dir / "a");
  EXPECT_EQ(tensor.at(0), 1.0);
}

TEST(MappedFile, WhatCannotBeMappedIsNamed) {
  const TempDir dir;
  EXPECT_QUERN_ERROR(MappedFile::open(dir / "absent"), ErrorCode::Io, "absent", "No such file");
  EXPECT_QUERN_ERROR(MappedFile::open(dir.path()), ErrorCode::Io, dir.path().string(), "folder");
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_QUERN_ERROR(MappedFile::open(dir / "pipe"), ErrorCode::Io, "pipe", "not a regular file");
}

TEST(MappedFile, ASliceBeyondTheEndIsAnError) {
  const TempDir dir;
  test::write_text(dir / "a", "hello");
  const auto file = MappedFile::open(dir / "a");
  EXPECT_EQ(file->slice(1, 4, "x").size(), 4U);
  EXPECT_EQ(file->slice(5, 0, "x").size(), 0U);
  EXPECT_QUERN_ERROR(file->slice(1, 5, "tensor 'w'"), ErrorCode::Corrupt, "tensor 'w'", "too short");
  EXPECT_QUERN_ERROR(file->slice(6, 0, "w"), ErrorCode::Corrupt);
  EXPECT_QUERN_ERROR(file->slice(2, UINT64_MAX, "w"), ErrorCode::Corrupt);
}

// A sparse file of 1 TiB opens at once, and touching a part of it and dropping that part leaves nothing
// resident.
TEST(MappedFile, AHugeFileIsNotRead) {
  const TempDir dir;
  test::write_text(dir / "a", "");
  if (::truncate((dir / "a").c_str(), off_t{1} << 40) != 0) GTEST_SKIP() << "no sparse files here";
  const auto file = MappedFile::open(dir / "a");
  EXPECT_EQ(file->size(), uint64_t{1} << 40);
  const auto tail = file->slice(file->size() - 4096, 4096, "x");
  EXPECT_EQ(tail.front(), std::byte{0});
  file->drop_pages(tail);
  EXPECT_EQ(tail.back(), std::byte{0});
}

}  // namespace
}  // namespace quern
