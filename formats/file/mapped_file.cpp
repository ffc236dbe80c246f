#include "formats/file/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "ir/error.h"

namespace quern {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void throw_open_error(const std::filesystem::path& path, int error) {
  throw_error(ErrorCode::Io, "cannot open '", path.string(), "': ", std::strerror(error));
}

void drop(std::span<const std::byte> range) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(range.data()) + page - 1) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(range.data()) + range.size()) / page * page;
  // Advice only: a failure costs memory, not correctness.
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

// All mappings of the process by their first byte, so that memory of unknown origin can be recognised.
struct Mappings {
  std::mutex mutex;
  std::map<const std::byte*, size_t> sizes;

  static Mappings& instance() {
    static Mappings* mappings = new Mappings;  // never destroyed: tensors in static storage may outlive it
    return *mappings;
  }
};

}  // namespace

MappedFile::MappedFile(std::filesystem::path path, std::span<const std::byte> bytes)
    : path_(std::move(path)), bytes_(bytes) {
  if (bytes_.empty()) return;
  Mappings& mappings = Mappings::instance();
  const std::lock_guard lock(mappings.mutex);
  mappings.sizes[bytes_.data()] = bytes_.size();
}

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a named pipe must be an error, not a wait for its writer.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) throw_open_error(path, errno);
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) throw_open_error(path, errno);
  if (S_ISDIR(status.st_mode)) {
    throw_error(ErrorCode::Io, "cannot open '", path.string(), "': it is a folder; name a file in it");
  }
  if (!S_ISREG(status.st_mode)) {
    throw_error(ErrorCode::Io, "cannot open '", path.string(),
                "': it is not a regular file and cannot be mapped into memory");
  }
  const auto size = static_cast<size_t>(status.st_size);
  std::span<const std::byte> bytes;
  if (size > 0) {
    void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (memory == MAP_FAILED) {
      throw_error(ErrorCode::Io, "cannot map '", path.string(), "' (", size,
                  " bytes) into memory: ", std::strerror(errno));
    }
    bytes = {static_cast<const std::byte*>(memory), size};
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(path, bytes));
}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;
  Mappings& mappings = Mappings::instance();
  const std::lock_guard lock(mappings.mutex);
  mappings.sizes.erase(bytes_.data());
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

std::span<const std::byte> MappedFile::slice(uint64_t offset, uint64_t length,
                                             const std::string& what) const {
  if (offset > size() || length > size() - offset) {
    throw_error(ErrorCode::Corrupt, "file ", name(), " is too short: ", what, " needs bytes ", offset, " to ",
                offset > UINT64_MAX - length ? UINT64_MAX : offset + length, ", and the file has ", size(),
                "; it may be truncated");
  }
  return bytes_.subspan(offset, length);
}

void MappedFile::drop_pages_if_mapped(std::span<const std::byte> range) {
  if (range.empty()) return;
  Mappings& mappings = Mappings::instance();
  const std::lock_guard lock(mappings.mutex);
  auto after = mappings.sizes.upper_bound(range.data());
  if (after == mappings.sizes.begin()) return;
  const auto& [begin, size] = *std::prev(after);
  const auto offset = static_cast<size_t>(range.data() - begin);
  if (offset < size && range.size() <= size - offset) drop(range);
}

void MappedFile::drop_pages(std::span<const std::byte> range) const {
  drop(range);
}

}  // namespace quern
