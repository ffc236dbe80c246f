// Files opened for reading by mapping them into memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace quern {

// A whole regular file, mapped read-only. Opening reads none of it; pages come in when they are touched and
// the system may drop them again, so that a file larger than the memory can be worked through. Hand the
// shared_ptr to Tensor::view as the owner, and the mapping lives as long as any tensor over it.
//
// The file must not be shortened while it is mapped: the system then ends the process (SIGBUS). Replacing it
// by rename, as AtomicFile does, is fine. Thread-safe: everything is const.
class MappedFile {
 public:
  // Throws Error{Io} where there is no such file, no permission, or something that is not a regular file.
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);

  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // As given to open(), quoted for a message.
  std::string name() const { return "'" + path_.string() + "'"; }
  uint64_t size() const { return bytes_.size(); }
  std::span<const std::byte> bytes() const { return bytes_; }  // of an empty file: an empty span

  // Bytes [offset, offset + length). Throws Error{Corrupt}, naming the file and `what`, where it is shorter.
  std::span<const std::byte> slice(uint64_t offset, uint64_t length, const std::string& what) const;

  // Lets the system take back the memory of pages that lie wholly in `range`, a part of bytes(). They are
  // read again when touched: for streaming through a file with a small resident size.
  void drop_pages(std::span<const std::byte> range) const;
  // The same for bytes that may or may not belong to a mapped file; without effect on any others.
  static void drop_pages_if_mapped(std::span<const std::byte> range);

 private:
  MappedFile(std::filesystem::path path, std::span<const std::byte> bytes);

  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

}  // namespace quern
