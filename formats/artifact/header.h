// The first bytes of a .quern file; SPEC.md, "Header".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace quern::artifact {

// As PNG's: a byte that is no ASCII, the name, and line ends that a transfer as text would damage.
inline constexpr std::array<uint8_t, 8> kMagic = {0x89, 'Q', 'U', 'E', 'R', 'N', 0x0A, 0x1A};
// Raised when an old reader would misread a new file; see SPEC.md, "Versions".
inline constexpr uint32_t kFormatVersion = 1;
inline constexpr size_t kHeaderSize = 64;
inline constexpr uint64_t kSectionAlignment = 64;
inline constexpr uint64_t kPage = 4096;
// Sections from this size on begin on a page.
inline constexpr uint64_t kPageAlignedFrom = 65536;

struct Header {
  uint32_t version = kFormatVersion;
  uint64_t file_size = 0;
  uint64_t manifest_offset = 0;
  uint64_t manifest_size = 0;
  uint32_t manifest_crc = 0;
};

std::array<std::byte, kHeaderSize> encode(const Header& header);

// Checks everything that the header can tell of a file of these bytes. Throws Error{Corrupt} for what is no
// .quern file, damaged or truncated, Error{Unsupported} for a newer version.
Header decode_header(std::span<const std::byte> file);

// Whether `file` begins like a .quern file.
bool has_magic(std::span<const std::byte> file);

}  // namespace quern::artifact
