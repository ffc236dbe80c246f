// Checksums of file contents.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace quern {

// CRC-32C (Castagnoli; RFC 3720 appendix B.4): polynomial 0x1EDC6F41 reflected, initial value and final XOR
// all ones. Pass an earlier result as `crc` to continue over the next bytes. Against accidents, not against
// people.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

// SHA-256 (FIPS 180-4).
class Sha256 {
 public:
  using Digest = std::array<uint8_t, 32>;

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text.data(), text.size()))); }
  // The digest of everything so far; the object must not be used afterwards.
  Digest finish();

 private:
  std::array<uint32_t, 8> state_ = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                                    0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};
  uint64_t length_ = 0;
  std::array<uint8_t, 64> block_ = {};
};

// Lower-case hexadecimal digits.
std::string to_hex(std::span<const uint8_t> bytes);
// The SHA-256 of a whole file, in hexadecimal. Throws Error{Io}.
std::string sha256_of_file(const std::filesystem::path& path);

namespace detail {
// The portable implementations, for tests that compare them with the ones the processor has instructions for.
uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t crc);
void sha256_blocks_portable(uint32_t* state, const uint8_t* data, size_t blocks);
void sha256_blocks(uint32_t* state, const uint8_t* data, size_t blocks);
}  // namespace detail

}  // namespace quern
