#include "formats/npy/npz.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "formats/file/mapped_file.h"
#include "formats/npy/npy.h"
#include "formats/npy/zip_records.h"
#include "ir/error.h"

namespace quern::npy {

using zip::load;

// Finds the end record and walks the central directory; every offset is checked against the file.
class Archive::DirectoryParser {
 public:
  explicit DirectoryParser(Archive& archive) : archive_(archive), bytes_(archive.bytes_) {}

  void parse() {
    locate_directory();
    size_t at = begin_;
    for (uint64_t i = 0; i < count_; ++i) at = parse_member(at);
  }

 private:
  [[noreturn]] static void fail(const std::string& what) {
    throw_error(ErrorCode::Corrupt, "not a whole .npz (ZIP) file: ", what);
  }

  void locate_directory() {
    if (bytes_.size() < zip::kEndSize) fail("it is too short");
    // A comment of up to 65535 bytes may follow the end record.
    const size_t first = bytes_.size() - std::min(bytes_.size(), zip::kEndSize + 65535);
    for (size_t at = bytes_.size() - zip::kEndSize + 1; at-- > first;) {
      if (load<uint32_t>(bytes_, at) != zip::kEndMagic) continue;
      return read_end_record(at);
    }
    fail("its directory is missing; it may be truncated");
  }

  void read_end_record(size_t at) {
    count_ = load<uint16_t>(bytes_, at + 10);
    uint64_t size = load<uint32_t>(bytes_, at + 12);
    uint64_t offset = load<uint32_t>(bytes_, at + 16);
    if (count_ == 0xFFFF || size == zip::kIn64 || offset == zip::kIn64) {
      if (at < zip::kLocator64Size ||
          load<uint32_t>(bytes_, at - zip::kLocator64Size) != zip::kLocator64Magic) {
        fail("its ZIP64 directory is missing");
      }
      const auto at64 = load<uint64_t>(bytes_, at - zip::kLocator64Size + 8);
      if (at64 > bytes_.size() || bytes_.size() - at64 < zip::kEnd64Size ||
          load<uint32_t>(bytes_, at64) != zip::kEnd64Magic) {
        fail("its ZIP64 directory is missing");
      }
      count_ = load<uint64_t>(bytes_, at64 + 32);
      size = load<uint64_t>(bytes_, at64 + 40);
      offset = load<uint64_t>(bytes_, at64 + 48);
    }
    if (offset > bytes_.size() || size > bytes_.size() - offset) fail("its directory lies outside the file");
    begin_ = offset;
    end_ = offset + size;
  }

  size_t parse_member(size_t at) {
    if (end_ - at < zip::kCentralSize || load<uint32_t>(bytes_, at) != zip::kCentralMagic) {
      fail("its directory ends before the last of " + std::to_string(count_) + " members");
    }
    const size_t name_size = load<uint16_t>(bytes_, at + 28);
    const size_t extra_size = load<uint16_t>(bytes_, at + 30);
    const size_t total = zip::kCentralSize + name_size + extra_size + load<uint16_t>(bytes_, at + 32);
    if (total > end_ - at) fail("its directory is cut off");
    std::string name(reinterpret_cast<const char*>(bytes_.data()) + at + zip::kCentralSize, name_size);
    Member member = {.header_offset = load<uint32_t>(bytes_, at + 42),
                     .packed_size = load<uint32_t>(bytes_, at + 20),
                     .size = load<uint32_t>(bytes_, at + 24),
                     .crc = load<uint32_t>(bytes_, at + 16),
                     .method = load<uint16_t>(bytes_, at + 10)};
    read_extra_64(bytes_.subspan(at + zip::kCentralSize + name_size, extra_size), member);
    if ((load<uint16_t>(bytes_, at + 8) & 1) != 0) {
      throw_error(ErrorCode::Unsupported, "member '", name, "' is encrypted");
    }
    if (name.ends_with(".npy")) name.resize(name.size() - 4);
    if (!archive_.members_.emplace(name, member).second) fail("two members are called '" + name + "'");
    archive_.names_.push_back(std::move(name));
    return at + total;
  }

  // The ZIP64 extra field holds, in this order, those of the three that are 0xFFFFFFFF in the record.
  static void read_extra_64(std::span<const std::byte> extra, Member& member) {
    while (extra.size() >= 4) {
      const auto id = load<uint16_t>(extra, 0);
      const size_t size = load<uint16_t>(extra, 2);
      if (size > extra.size() - 4) fail("an extra field is cut off");
      auto field = extra.subspan(4, size);
      extra = extra.subspan(4 + size);
      if (id != zip::kExtra64) continue;
      for (uint64_t* value : {&member.size, &member.packed_size, &member.header_offset}) {
        if (*value != zip::kIn64) continue;
        if (field.size() < 8) fail("a ZIP64 field is cut off");
        *value = load<uint64_t>(field, 0);
        field = field.subspan(8);
      }
    }
  }

  Archive& archive_;
  std::span<const std::byte> bytes_;
  uint64_t count_ = 0;
  size_t begin_ = 0;
  size_t end_ = 0;
};

namespace {

uint32_t zip_crc(std::span<const std::byte> bytes, uLong crc = 0) {
  return static_cast<uint32_t>(
      ::crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<z_size_t>(bytes.size())));
}

// Raw deflate; exactly out.size() bytes must come out.
void inflate_into(std::span<const std::byte> packed, std::span<std::byte> out) {
  z_stream stream = {};
  if (::inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw_error(ErrorCode::OutOfMemory, "no memory to unpack");
  int result = Z_OK;
  size_t in_at = 0;
  size_t out_at = 0;
  constexpr size_t kPiece = size_t{1} << 30;  // zlib counts in 32 bits
  std::byte spare = {};                       // so that zlib can see the end of the stream when out is full
  while (result == Z_OK) {
    const size_t in_piece = std::min(kPiece, packed.size() - in_at);
    const size_t out_piece = std::min(kPiece, out.size() - out_at);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data() + in_at));
    stream.avail_in = static_cast<uInt>(in_piece);
    stream.next_out = reinterpret_cast<Bytef*>(out_piece > 0 ? out.data() + out_at : &spare);
    stream.avail_out = static_cast<uInt>(out_piece > 0 ? out_piece : 1);
    result = ::inflate(&stream, Z_NO_FLUSH);
    in_at += in_piece - stream.avail_in;
    if (out_piece == 0 && stream.avail_out == 0) result = Z_DATA_ERROR;  // more than was announced
    if (out_piece > 0) out_at += out_piece - stream.avail_out;
  }
  ::inflateEnd(&stream);
  if (result != Z_STREAM_END || out_at != out.size()) {
    throw_error(ErrorCode::Corrupt, "the packed data is damaged or does not have the announced size");
  }
}

}  // namespace

Archive Archive::open(const std::filesystem::path& path, const ArchiveOptions& options) {
  const auto file = MappedFile::open(path);
  return parse(file->bytes(), file, path.string(), options);
}

Archive Archive::parse(std::span<const std::byte> bytes, std::shared_ptr<const void> owner, std::string name,
                       const ArchiveOptions& options) {
  Archive archive;
  archive.name_ = std::move(name);
  archive.owner_ = std::move(owner);
  archive.bytes_ = bytes;
  archive.options_ = options;
  with_context("reading '" + archive.name_ + "'", [&] { DirectoryParser(archive).parse(); });
  return archive;
}

std::span<const std::byte> Archive::packed_bytes(const Member& member) const {
  const uint64_t at = member.header_offset;
  if (at > bytes_.size() || bytes_.size() - at < zip::kLocalSize ||
      load<uint32_t>(bytes_, at) != zip::kLocalMagic) {
    throw_error(ErrorCode::Corrupt, "the header of the member is missing");
  }
  const uint64_t begin =
      at + zip::kLocalSize + load<uint16_t>(bytes_, at + 26) + load<uint16_t>(bytes_, at + 28);
  if (begin > bytes_.size() || member.packed_size > bytes_.size() - begin) {
    throw_error(ErrorCode::Corrupt, "the member lies outside the file; it may be truncated");
  }
  return bytes_.subspan(begin, member.packed_size);
}

Tensor Archive::read(const std::string& name) const {
  return with_context("reading array '" + name + "' of '" + name_ + "'", [&]() -> Tensor {
    const auto found = members_.find(name);
    if (found == members_.end()) throw_error(ErrorCode::BadData, "there is no array '", name, "'");
    const Member& member = found->second;
    const auto packed = packed_bytes(member);
    if (member.size > options_.max_member_bytes) {
      throw_error(ErrorCode::BadData, "the member unpacks to ", member.size, " bytes, over the limit of ",
                  options_.max_member_bytes);
    }
    std::shared_ptr<const void> owner = owner_;
    std::span<const std::byte> contents = packed;
    if (member.method == zip::kDeflated) {
      if (member.size / 1032 > packed.size()) {
        throw_error(ErrorCode::Corrupt, packed.size(), " packed bytes cannot hold the announced ",
                    member.size);
      }
      auto unpacked = std::make_shared<Tensor>(Tensor::zeros(DType::U8, {static_cast<int64_t>(member.size)}));
      const std::span<std::byte> out(unpacked->mutable_bytes(), member.size);
      inflate_into(packed, out);
      contents = out;
      owner = unpacked;
    } else if (member.method != zip::kStored) {
      throw_error(ErrorCode::Unsupported, "packing method ", member.method,
                  " is not supported; stored and deflated are");
    } else if (member.size != packed.size()) {
      throw_error(ErrorCode::Corrupt, "a stored member claims two sizes, ", packed.size(), " and ",
                  member.size);
    }
    if (zip_crc(contents) != member.crc) throw_error(ErrorCode::Corrupt, "the CRC does not match");
    return npy::parse(contents, std::move(owner), name + ".npy");
  });
}

}  // namespace quern::npy
