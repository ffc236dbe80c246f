#include "formats/artifact/header.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "formats/file/checksum.h"
#include "ir/error.h"

namespace quern::artifact {
namespace {

static_assert(std::endian::native == std::endian::little, "the numbers of the header are little-endian");

// Offsets in the header.
constexpr size_t kVersionAt = 8;
constexpr size_t kHeaderSizeAt = 12;
constexpr size_t kFileSizeAt = 16;
constexpr size_t kManifestOffsetAt = 24;
constexpr size_t kManifestSizeAt = 32;
constexpr size_t kManifestCrcAt = 40;
constexpr size_t kHeaderCrcAt = 60;

template <class T>
void store(std::span<std::byte> out, size_t at, T value) {
  std::memcpy(out.data() + at, &value, sizeof(T));
}

template <class T>
T load(std::span<const std::byte> in, size_t at) {
  T value;
  std::memcpy(&value, in.data() + at, sizeof(T));
  return value;
}

}  // namespace

std::array<std::byte, kHeaderSize> encode(const Header& header) {
  std::array<std::byte, kHeaderSize> bytes = {};
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  store(bytes, kVersionAt, header.version);
  store(bytes, kHeaderSizeAt, static_cast<uint32_t>(kHeaderSize));
  store(bytes, kFileSizeAt, header.file_size);
  store(bytes, kManifestOffsetAt, header.manifest_offset);
  store(bytes, kManifestSizeAt, header.manifest_size);
  store(bytes, kManifestCrcAt, header.manifest_crc);
  store(bytes, kHeaderCrcAt, crc32c(std::span(bytes).first(kHeaderCrcAt)));
  return bytes;
}

bool has_magic(std::span<const std::byte> file) {
  return file.size() >= kMagic.size() && std::memcmp(file.data(), kMagic.data(), kMagic.size()) == 0;
}

Header decode_header(std::span<const std::byte> file) {
  if (file.empty()) throw_error(ErrorCode::Corrupt, "the file is empty");
  if (!has_magic(file)) throw_error(ErrorCode::Corrupt, "not a quern artifact: it does not begin like one");
  if (file.size() < kHeaderSize) throw_error(ErrorCode::Corrupt, "the file is truncated within its header");
  Header header;
  header.version = load<uint32_t>(file, kVersionAt);
  // Before the checksum: what it goes over may be another thing in a newer version.
  if (header.version > kFormatVersion) {
    throw_error(ErrorCode::Unsupported, "the artifact has format version ", header.version,
                ", and this quern reads versions up to ", kFormatVersion,
                "; use a newer quern, or convert again");
  }
  if (load<uint32_t>(file, kHeaderCrcAt) != crc32c(file.first(kHeaderCrcAt)) || header.version == 0 ||
      load<uint32_t>(file, kHeaderSizeAt) != kHeaderSize) {
    throw_error(ErrorCode::Corrupt, "the header is damaged (its checksum does not match)");
  }
  header.file_size = load<uint64_t>(file, kFileSizeAt);
  header.manifest_offset = load<uint64_t>(file, kManifestOffsetAt);
  header.manifest_size = load<uint64_t>(file, kManifestSizeAt);
  header.manifest_crc = load<uint32_t>(file, kManifestCrcAt);
  if (header.file_size != file.size()) {
    throw_error(ErrorCode::Corrupt, "the file has ", file.size(), " bytes where its header says ",
                header.file_size, file.size() < header.file_size ? "; it is truncated" : "");
  }
  if (header.manifest_offset > file.size() || header.manifest_size > file.size() - header.manifest_offset) {
    throw_error(ErrorCode::Corrupt, "the manifest lies outside the file");
  }
  return header;
}

}  // namespace quern::artifact
