#include <zlib.h>

#include <algorithm>
#include <vector>

#include "formats/file/atomic_file.h"
#include "formats/npy/npy.h"
#include "formats/npy/npz.h"
#include "formats/npy/zip_records.h"
#include "ir/error.h"

namespace quern::npy {
namespace {

constexpr uint16_t kVersion64 = 45;       // "needs ZIP64"
constexpr uint16_t kUtf8Names = 1 << 11;  // general-purpose flag
constexpr uint32_t kNoTime = 0x00210000;  // 1980-01-01 00:00, the first time that the format can express

struct Written {
  std::string name;
  uint64_t header_offset = 0;
  uint64_t packed_size = 0;
  uint64_t size = 0;
  uint32_t crc = 0;
  uint16_t method = zip::kStored;
};

// Sends bytes into the file, packed or not, and keeps their CRC.
class MemberSink {
 public:
  MemberSink(AtomicFile& file, Written& written, int level) : file_(file), written_(written), level_(level) {
    if (level_ == 0) return;
    if (::deflateInit2(&stream_, level_, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
      throw_error(ErrorCode::OutOfMemory, "no memory to pack");
    }
  }
  ~MemberSink() {
    if (level_ != 0) ::deflateEnd(&stream_);
  }
  MemberSink(const MemberSink&) = delete;
  MemberSink& operator=(const MemberSink&) = delete;

  void add(std::span<const std::byte> bytes) {
    written_.size += bytes.size();
    written_.crc = static_cast<uint32_t>(
        ::crc32_z(written_.crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
    if (level_ == 0) return put(bytes);
    while (!bytes.empty()) {
      const auto piece = bytes.first(std::min(bytes.size(), size_t{1} << 24));
      pack(piece, Z_NO_FLUSH);
      bytes = bytes.subspan(piece.size());
    }
  }
  void finish() {
    if (level_ != 0) pack({}, Z_FINISH);
  }

 private:
  void put(std::span<const std::byte> bytes) {
    file_.write(bytes);
    written_.packed_size += bytes.size();
  }

  void pack(std::span<const std::byte> bytes, int flush) {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data()));
    stream_.avail_in = static_cast<uInt>(bytes.size());
    do {
      stream_.next_out = reinterpret_cast<Bytef*>(out_.data());
      stream_.avail_out = static_cast<uInt>(out_.size());
      ::deflate(&stream_, flush);
      put(std::span(out_).first(out_.size() - stream_.avail_out));
    } while (stream_.avail_out == 0);
  }

  AtomicFile& file_;
  Written& written_;
  int level_;
  z_stream stream_ = {};
  std::vector<std::byte> out_ = std::vector<std::byte>(size_t{1} << 16);
};

// The fields that local and central headers share, sizes always in the ZIP64 field.
std::string common_fields(const Written& member) {
  std::string out;
  zip::append<uint16_t>(out, kVersion64);
  zip::append<uint16_t>(out, kUtf8Names);
  zip::append<uint16_t>(out, member.method);
  zip::append<uint32_t>(out, kNoTime);
  zip::append<uint32_t>(out, member.crc);
  zip::append<uint32_t>(out, zip::kIn64);
  zip::append<uint32_t>(out, zip::kIn64);
  zip::append<uint16_t>(out, static_cast<uint16_t>(member.name.size()));
  return out;
}

// `padding` extra bytes put the elements on an aligned offset.
std::string local_header(const Written& member, size_t padding) {
  std::string out;
  zip::append<uint32_t>(out, zip::kLocalMagic);
  out += common_fields(member);
  zip::append<uint16_t>(out, static_cast<uint16_t>(20 + padding));
  out += member.name;
  zip::append<uint16_t>(out, zip::kExtra64);
  zip::append<uint16_t>(out, 16);
  zip::append<uint64_t>(out, member.size);
  zip::append<uint64_t>(out, member.packed_size);
  if (padding > 0) {
    zip::append<uint16_t>(out, 0xD935);  // the alignment field of Android's zipalign; others skip it
    zip::append<uint16_t>(out, static_cast<uint16_t>(padding - 4));
    out.append(padding - 4, '\0');
  }
  return out;
}

std::string central_header(const Written& member) {
  std::string out;
  zip::append<uint32_t>(out, zip::kCentralMagic);
  zip::append<uint16_t>(out, kVersion64);
  out += common_fields(member);
  zip::append<uint16_t>(out, 28);  // extra
  zip::append<uint16_t>(out, 0);   // comment
  zip::append<uint16_t>(out, 0);   // disk
  zip::append<uint16_t>(out, 0);   // internal attributes
  zip::append<uint32_t>(out, 0);   // external attributes
  zip::append<uint32_t>(out, zip::kIn64);
  out += member.name;
  zip::append<uint16_t>(out, zip::kExtra64);
  zip::append<uint16_t>(out, 24);
  zip::append<uint64_t>(out, member.size);
  zip::append<uint64_t>(out, member.packed_size);
  zip::append<uint64_t>(out, member.header_offset);
  return out;
}

std::string end_records(uint64_t count, uint64_t directory_offset, uint64_t directory_size) {
  std::string out;
  const uint64_t end64 = directory_offset + directory_size;
  zip::append<uint32_t>(out, zip::kEnd64Magic);
  zip::append<uint64_t>(out, zip::kEnd64Size - 12);
  zip::append<uint16_t>(out, kVersion64);
  zip::append<uint16_t>(out, kVersion64);
  zip::append<uint32_t>(out, 0);
  zip::append<uint32_t>(out, 0);
  for (const uint64_t value : {count, count, directory_size, directory_offset}) zip::append(out, value);
  zip::append<uint32_t>(out, zip::kLocator64Magic);
  zip::append<uint32_t>(out, 0);
  zip::append<uint64_t>(out, end64);
  zip::append<uint32_t>(out, 1);
  zip::append<uint32_t>(out, zip::kEndMagic);
  zip::append<uint32_t>(out, 0);
  zip::append<uint16_t>(out, 0xFFFF);
  zip::append<uint16_t>(out, 0xFFFF);
  zip::append<uint32_t>(out, zip::kIn64);
  zip::append<uint32_t>(out, zip::kIn64);
  zip::append<uint16_t>(out, 0);
  return out;
}

Written write_member(AtomicFile& file, const std::string& name, const Tensor& tensor, int level) {
  Written member;
  member.name = name + ".npy";
  if (member.name.size() > 0xFFFF) throw_error(ErrorCode::InvalidArgument, "an array's name is too long");
  member.header_offset = file.size();
  member.method = level == 0 ? zip::kStored : zip::kDeflated;
  // The .npy header is a multiple of 64 bytes; let it begin on one.
  size_t padding = (64 - (file.size() + local_header(member, 0).size()) % 64) % 64;
  if (padding > 0 && padding < 4) padding += 64;
  file.write(local_header(member, padding));
  const Parts parts = to_parts(tensor);
  MemberSink sink(file, member, level);
  sink.add(std::as_bytes(std::span(parts.header)));
  sink.add(std::span(parts.elements.bytes(), static_cast<size_t>(parts.elements.byte_size())));
  sink.finish();
  const std::string header = local_header(member, padding);
  file.write_at(member.header_offset, std::as_bytes(std::span(header)));
  return member;
}

}  // namespace

void write_archive(const std::filesystem::path& path, const std::map<std::string, Tensor>& arrays,
                   const ArchiveWriteOptions& options) {
  if (options.compression_level < 0 || options.compression_level > 9) {
    throw_error(ErrorCode::InvalidArgument, "compression level ", options.compression_level,
                " is not one of 0 to 9");
  }
  AtomicFile file(path);
  std::string directory;
  for (const auto& [name, tensor] : arrays) {
    directory += central_header(write_member(file, name, tensor, options.compression_level));
  }
  const uint64_t offset = file.size();
  file.write(directory);
  file.write(end_records(arrays.size(), offset, directory.size()));
  file.commit();
}

}  // namespace quern::npy
