#include "formats/file/checksum.h"

#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"

namespace quern {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string pattern(size_t size) {
  std::string text(size, '\0');
  uint32_t state = 1;
  for (char& c : text) c = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return text;
}

TEST(Crc32c, KnownValues) {
  EXPECT_EQ(crc32c({}), 0U);
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283U);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\0'))), 0x8A9136AAU);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\xFF'))), 0x62A8AB43U);
}

TEST(Crc32c, EveryImplementationAndEveryCutAgree) {
  const std::string text = pattern(300);
  for (size_t size = 0; size <= text.size(); ++size) {
    const auto all = bytes_of(text).first(size);
    const uint32_t whole = crc32c(all);
    EXPECT_EQ(detail::crc32c_portable(all, 0), whole);
    EXPECT_EQ(crc32c(all.subspan(size / 3), crc32c(all.first(size / 3))), whole);
  }
}

std::string sha256(const std::string& text) {
  Sha256 hash;
  hash.update(text);
  return to_hex(hash.finish());
}

TEST(Sha256, KnownValues) {  // FIPS 180-4 examples
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, EveryImplementationAgrees) {
  const std::string text = pattern(64 * 9);
  uint32_t fast[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  uint32_t portable[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  detail::sha256_blocks(fast, reinterpret_cast<const uint8_t*>(text.data()), 9);
  detail::sha256_blocks_portable(portable, reinterpret_cast<const uint8_t*>(text.data()), 9);
  EXPECT_TRUE(std::equal(fast, fast + 8, portable));
}

TEST(Sha256, EveryCutAgrees) {
  const std::string text = pattern(200);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Sha256 hash;
    hash.update(std::string_view(text).substr(0, cut));
    hash.update(std::string_view(text).substr(cut));
    EXPECT_EQ(to_hex(hash.finish()), sha256(text));
  }
}

TEST(Sha256, OfAFile) {
  const test::TempDir dir;
  test::write_text(dir / "a", "abc");
  EXPECT_EQ(sha256_of_file(dir / "a"), sha256("abc"));
}

}  // namespace
}  // namespace quern
