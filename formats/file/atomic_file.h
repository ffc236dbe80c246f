// Files that appear whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace quern {

// Writes a file beside its final place and moves it there in commit(), once every byte is on the disk. Until
// then the target, if it exists, is untouched; without commit() nothing stays behind. Where the file system
// can (O_TMPFILE), the unfinished file has no name, so that even a killed process leaves nothing; elsewhere
// it is called ".<name>.<pid>-<n>.tmp" and the destructor, or the signal hook below, removes it.
//
// Every function throws Error{Io} naming the target, also when the disk is full. Not thread-safe.
class AtomicFile {
 public:
  // Refuses a target that exists and is not a regular file. A symbolic link is followed: what it points to is
  // replaced.
  // `allow_unnamed = false` forces the named temporary file (for tests of that way).
  explicit AtomicFile(const std::filesystem::path& target, bool allow_unnamed = true);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Appends. Small pieces are gathered before they go to the system.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  // Overwrites bytes that have been appended before (a header known only at the end).
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  // Appends zeros up to the next multiple of `alignment`.
  void align(uint64_t alignment);
  // Bytes appended so far.
  uint64_t size() const { return size_; }

  // Flushes to the disk and moves the file into place. Call once, last.
  void commit();

 private:
  void open_unnamed();
  void open_named();
  void flush();
  void write_through(uint64_t offset, std::span<const std::byte> bytes);
  void give_name();
  void discard() noexcept;
  [[noreturn]] void fail(const char* action, int error);

  std::filesystem::path shown_;      // the target as the caller named it
  std::filesystem::path target_;     // with symbolic links resolved
  std::filesystem::path temporary_;  // empty while the file has no name
  int fd_ = -1;
  int cleanup_slot_ = -1;
  uint64_t size_ = 0;     // with what waits in buffer_
  uint64_t flushed_ = 0;  // without it
  std::string buffer_;
};

// Writes all of `bytes` to `target` by way of an AtomicFile.
void write_file(const std::filesystem::path& target, std::string_view bytes);

// Makes SIGINT, SIGTERM and SIGHUP remove the named temporary files of every AtomicFile of the process before
// they end it as usual (the parent sees the signal). For main() of a program; a library must leave signals
// alone.
void remove_unfinished_files_on_signals();

}  // namespace quern
