#include "formats/file/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>

#include "ir/error.h"

namespace quern {
namespace {

constexpr size_t kBufferSize = size_t{1} << 20;

// Names for the signal handler, which may neither lock nor allocate: a slot is claimed, filled, then
// published.
struct CleanupSlot {
  enum State : int { kFree, kClaimed, kInUse };
  std::atomic<int> state = kFree;
  char path[PATH_MAX] = {};
};
std::array<CleanupSlot, 16> cleanup_slots;
static_assert(std::atomic<int>::is_always_lock_free);

// -1 where all slots are taken or the name is too long: then only the destructor cleans up.
int remember_for_cleanup(const std::string& path) {
  if (path.size() >= PATH_MAX) return -1;
  for (size_t i = 0; i < cleanup_slots.size(); ++i) {
    int expected = CleanupSlot::kFree;
    if (!cleanup_slots[i].state.compare_exchange_strong(expected, CleanupSlot::kClaimed)) continue;
    std::memcpy(cleanup_slots[i].path, path.c_str(), path.size() + 1);
    cleanup_slots[i].state = CleanupSlot::kInUse;
    return static_cast<int>(i);
  }
  return -1;
}

void forget_for_cleanup(int slot) {
  if (slot >= 0) cleanup_slots[static_cast<size_t>(slot)].state = CleanupSlot::kFree;
}

extern "C" void remove_unfinished_files(int signal_number) {
  for (CleanupSlot& slot : cleanup_slots) {
    if (slot.state == CleanupSlot::kInUse) ::unlink(slot.path);
  }
  ::signal(signal_number, SIG_DFL);
  ::raise(signal_number);
}

std::filesystem::path folder_of(const std::filesystem::path& file) {
  const std::filesystem::path folder = file.parent_path();
  return folder.empty() ? std::filesystem::path(".") : folder;
}

std::string descriptor_path(int fd) {
  return "/proc/self/fd/" + std::to_string(fd);
}

std::filesystem::path temporary_name(const std::filesystem::path& target) {
  static std::atomic<int> counter = 0;
  // A long file name is cut, so that the temporary one stays within the 255 bytes of a file system.
  const std::string name = "." + target.filename().string().substr(0, 200) + "." +
                           std::to_string(::getpid()) + "-" + std::to_string(counter++) + ".tmp";
  return folder_of(target) / name;
}

// Follows symbolic links, also one whose target does not exist yet.
std::filesystem::path resolve_links(std::filesystem::path path) {
  for (int depth = 0; depth < 40; ++depth) {
    std::error_code error;
    const std::filesystem::path link = std::filesystem::read_symlink(path, error);
    if (error) return path;
    path = link.is_absolute() ? link : folder_of(path) / link;
  }
  return path;  // a loop: opening will fail and say so
}

}  // namespace

AtomicFile::AtomicFile(const std::filesystem::path& target, bool allow_unnamed)
    : shown_(target), target_(resolve_links(target)) {
  struct stat status = {};
  if (::stat(target_.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    throw_error(ErrorCode::Io, "cannot write '", shown_.string(), "': it exists and is ",
                S_ISDIR(status.st_mode) ? "a folder" : "not a regular file");
  }
  if (target_.filename().empty() || target_.filename() == "." || target_.filename() == "..") {
    throw_error(ErrorCode::Io, "cannot write '", shown_.string(), "': it does not name a file");
  }
  if (allow_unnamed) open_unnamed();
  if (fd_ < 0) open_named();
}

AtomicFile::~AtomicFile() {
  discard();
}

void AtomicFile::open_unnamed() {
#ifdef O_TMPFILE
  fd_ = ::open(folder_of(target_).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  // Giving it a name later goes through /proc; a system without it takes the other way.
  if (fd_ >= 0 && ::access(descriptor_path(fd_).c_str(), F_OK) != 0) {
    ::close(fd_);
    fd_ = -1;
  }
#endif
}

void AtomicFile::open_named() {
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::filesystem::path name = temporary_name(target_);
    cleanup_slot_ = remember_for_cleanup(name.string());
    fd_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0) {
      temporary_ = name;
      return;
    }
    const int error = errno;
    forget_for_cleanup(cleanup_slot_);
    cleanup_slot_ = -1;
    if (error != EEXIST) fail("create", error);
  }
  fail("create", EEXIST);
}

void AtomicFile::fail(const char* action, int error) {
  discard();
  throw_error(ErrorCode::Io, "cannot ", action, " '", shown_.string(), "': ", std::strerror(error),
              error == ENOSPC || error == EDQUOT ? "; free some space or choose another place" : "");
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (fd_ < 0)
    throw_error(ErrorCode::Internal, "'", shown_.string(), "' is written after its end or a failure");
  if (buffer_.size() + bytes.size() <= kBufferSize) {
    buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    size_ += bytes.size();
    return;
  }
  flush();
  if (bytes.size() >= kBufferSize) {
    write_through(flushed_, bytes);
    flushed_ += bytes.size();
  } else {
    buffer_.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  size_ += bytes.size();
}

void AtomicFile::flush() {
  write_through(flushed_, std::as_bytes(std::span(buffer_)));
  flushed_ += buffer_.size();
  buffer_.clear();
}

void AtomicFile::write_through(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    // Linux writes at most about 2 GiB a call; a smaller piece keeps an interrupt responsive.
    const size_t piece = std::min(bytes.size(), size_t{1} << 26);
    const ssize_t written = ::pwrite(fd_, bytes.data(), piece, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write", errno);
    if (written == 0) fail("write", ENOSPC);
    offset += static_cast<uint64_t>(written);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void AtomicFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  if (offset > size_ || bytes.size() > size_ - offset) {
    throw_error(ErrorCode::Internal, "write_at(", offset, ") beyond the ", size_, " bytes of '",
                shown_.string(), "'");
  }
  flush();
  write_through(offset, bytes);
}

void AtomicFile::align(uint64_t alignment) {
  static constexpr std::array<std::byte, 4096> kZeros = {};
  uint64_t missing = (alignment - size_ % alignment) % alignment;
  while (missing > 0) {
    const auto piece = std::min<uint64_t>(missing, kZeros.size());
    write(std::span(kZeros).first(piece));
    missing -= piece;
  }
}

void AtomicFile::give_name() {
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::filesystem::path name = temporary_name(target_);
    cleanup_slot_ = remember_for_cleanup(name.string());
    if (::linkat(AT_FDCWD, descriptor_path(fd_).c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) {
      temporary_ = name;
      return;
    }
    const int error = errno;
    forget_for_cleanup(cleanup_slot_);
    cleanup_slot_ = -1;
    if (error != EEXIST) fail("create", error);
  }
  fail("create", EEXIST);
}

void AtomicFile::commit() {
  if (fd_ < 0)
    throw_error(ErrorCode::Internal, "'", shown_.string(), "' is committed twice or after a failure");
  flush();
  if (::fsync(fd_) != 0) fail("write", errno);
  if (temporary_.empty()) give_name();
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail("create", errno);
  temporary_.clear();
  forget_for_cleanup(cleanup_slot_);
  cleanup_slot_ = -1;
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0) fail("write", errno);
  // The file is in place; that its name survives a power cut depends on the folder. Some file systems refuse
  // to sync a folder, and there is nothing to do about it.
  const int folder = ::open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);
    ::close(folder);
  }
}

void AtomicFile::discard() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
  forget_for_cleanup(cleanup_slot_);
  cleanup_slot_ = -1;
}

void write_file(const std::filesystem::path& target, std::string_view bytes) {
  AtomicFile file(target);
  file.write(bytes);
  file.commit();
}

void remove_unfinished_files_on_signals() {
  struct sigaction action = {};
  action.sa_handler = remove_unfinished_files;
  ::sigemptyset(&action.sa_mask);
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction old = {};
    // A signal that the parent made us ignore (nohup) stays ignored.
    if (::sigaction(signal_number, nullptr, &old) == 0 && old.sa_handler != SIG_IGN) {
      ::sigaction(signal_number, &action, nullptr);
    }
  }
}

}  // namespace quern
