// NumPy's archives of arrays, .npz: ZIP files of .npy members, stored or deflated.
// ZIP as in PKWARE's APPNOTE.TXT 6.3, sections 4.3 to 4.5 (with ZIP64; no encryption, no parts).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ir/tensor.h"

namespace quern {
class MappedFile;
}

namespace quern::npy {

struct ArchiveOptions {
  // The most bytes that one member may unpack to. What a file cannot hold (deflate packs at most 1032 to 1)
  // is refused before anything is allocated, whatever this says.
  uint64_t max_member_bytes = uint64_t{1} << 36;
};

// An open .npz file. Members are unpacked when they are read; stored ones are views of the mapped file.
class Archive {
 public:
  // Reads the directory. Throws Error{Io}, Error{Corrupt} on a malformed or truncated one, Error{Unsupported}
  // on encryption or a method other than stored and deflated.
  static Archive open(const std::filesystem::path& path, const ArchiveOptions& options = {});
  // From memory that `owner` keeps alive; `name` is for messages.
  static Archive parse(std::span<const std::byte> bytes, std::shared_ptr<const void> owner, std::string name,
                       const ArchiveOptions& options = {});

  // Names of the arrays, without ".npy", in the order of the directory.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const { return members_.contains(name); }
  // Throws Error{BadData} where there is no such array, else as npy::read; Error{Corrupt} on a wrong CRC.
  Tensor read(const std::string& name) const;

 private:
  struct Member {
    uint64_t header_offset;
    uint64_t packed_size;
    uint64_t size;
    uint32_t crc;
    uint16_t method;
  };
  class DirectoryParser;

  std::span<const std::byte> packed_bytes(const Member& member) const;

  std::string name_;
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
  ArchiveOptions options_;
  std::vector<std::string> names_;
  std::map<std::string, Member> members_;
};

struct ArchiveWriteOptions {
  int compression_level = 0;  // 0 stores, so that arrays can be mapped; 1 to 9 deflate
};

// Writes a .npz file with the arrays in the order of their names; dtypes as npy::write. Atomic and without
// time stamps: the same arrays give the same bytes. Throws Error{Io}.
void write_archive(const std::filesystem::path& path, const std::map<std::string, Tensor>& arrays,
                   const ArchiveWriteOptions& options = {});

}  // namespace quern::npy
