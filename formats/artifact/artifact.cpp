#include "formats/artifact/artifact.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "formats/artifact/graph_decoder.h"
#include "formats/artifact/header.h"
#include "formats/file/checksum.h"
#include "formats/file/mapped_file.h"
#include "ir/error.h"
#include "ir/verifier.h"

namespace quern::artifact {
namespace {

// Of threads that compare checksums, and from what size of a file on there are more than one.
constexpr size_t kMostVerifiers = 4;
constexpr size_t kLargeFile = 16 << 20;

proto::Manifest parse_manifest(std::span<const std::byte> file, const Header& header) {
  const auto bytes = file.subspan(header.manifest_offset, header.manifest_size);
  if (crc32c(bytes) != header.manifest_crc) {
    throw_error(ErrorCode::Corrupt, "the manifest is damaged (its checksum does not match)");
  }
  proto::Manifest manifest;
  if (bytes.size() > INT_MAX || !manifest.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    throw_error(ErrorCode::Corrupt, "the manifest is malformed");
  }
  return manifest;
}

std::vector<Artifact::Section> read_sections(const proto::Manifest& manifest, uint64_t file_size) {
  std::vector<Artifact::Section> sections;
  for (const proto::Section& in : manifest.sections()) {
    if (in.offset() > file_size || in.size() > file_size - in.offset() ||
        in.offset() % kSectionAlignment != 0) {
      throw_error(ErrorCode::Corrupt, "section ", sections.size(), " ('", in.name(), "') of ", in.size(),
                  " bytes at ", in.offset(), " lies outside the file or is not aligned");
    }
    sections.push_back({in.name(), in.offset(), in.size(), in.crc32c()});
  }
  return sections;
}

}  // namespace

Artifact::~Artifact() = default;
Artifact::Artifact(Artifact&&) noexcept = default;
Artifact& Artifact::operator=(Artifact&&) noexcept = default;

Artifact Artifact::open(const std::filesystem::path& path, const OpenOptions& options) {
  const auto file = MappedFile::open(path);
  return parse(file->bytes(), file, path.string(), options);
}

Artifact Artifact::parse(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                         std::string name, const OpenOptions& options) {
  Artifact artifact;
  artifact.name_ = std::move(name);
  artifact.owner_ = std::move(owner);
  artifact.bytes_ = bytes;
  if (reinterpret_cast<uintptr_t>(bytes.data()) % kSectionAlignment != 0) {
    auto copy = std::make_shared<Tensor>(Tensor::zeros(DType::U8, {static_cast<int64_t>(bytes.size())}));
    if (!bytes.empty()) std::memcpy(copy->mutable_bytes(), bytes.data(), bytes.size());
    artifact.bytes_ = {copy->bytes(), bytes.size()};
    artifact.owner_ = copy;
  }
  with_context("opening '" + artifact.name_ + "'", [&] { artifact.load(); });
  if (options.verify) artifact.verify();
  return artifact;
}

void Artifact::load() {
  const Header header = decode_header(bytes_);
  version_ = header.version;
  const proto::Manifest manifest = parse_manifest(bytes_, header);
  producer_ = manifest.producer();
  sections_ = read_sections(manifest, bytes_.size());
  const auto section = [this](uint32_t index) {
    if (index >= sections_.size()) throw_error(ErrorCode::Corrupt, "there is no section ", index);
    return bytes_.subspan(sections_[index].offset, sections_[index].size);
  };
  for (const proto::Attachment& attachment : manifest.attachments()) {
    section(attachment.section());
    attachments_[attachment.name()] = attachment.section();
  }
  for (const proto::SourceFile& file : manifest.source())
    sources_.push_back({file.name(), file.size(), file.sha256()});
  if (!manifest.has_graph()) throw_error(ErrorCode::Corrupt, "the manifest holds no graph");
  graph_ = std::make_unique<Graph>(manifest.graph().name());
  GraphDecoder(manifest, section, owner_).decode(manifest.graph(), *graph_);
  quern::verify(*graph_);
}

std::span<const std::byte> Artifact::checked_section(size_t index) const {
  const Section& section = sections_[index];
  const auto bytes = bytes_.subspan(section.offset, section.size);
  if (crc32c(bytes) != section.crc) {
    throw_error(ErrorCode::Corrupt, "'", section.name, "' in '", name_,
                "' is damaged (its checksum does not match); convert the model again");
  }
  return bytes;
}

void Artifact::verify() const {
  // One thread computes checksums at a third of the rate that memory is read at.
  std::atomic<size_t> next = 0;
  std::atomic<size_t> damaged = sections_.size();  // the first one
  const auto check = [&] {
    for (size_t i = next++; i < damaged; i = next++) {
      const Section& section = sections_[i];
      const auto bytes = bytes_.subspan(section.offset, section.size);
      if (crc32c(bytes) != section.crc) {
        for (size_t known = damaged; i < known && !damaged.compare_exchange_weak(known, i);) {
        }
      }
      MappedFile::drop_pages_if_mapped(bytes);
    }
  };
  {
    std::vector<std::jthread> helpers;
    const size_t most = std::min<size_t>(std::thread::hardware_concurrency(), kMostVerifiers);
    try {
      if (bytes_.size() > kLargeFile) {
        while (helpers.size() + 1 < most) helpers.emplace_back(check);
      }
    } catch (const std::exception&) {
      // Where there are no threads to be had this one does all of it.
    }
    check();
  }
  if (damaged < sections_.size()) checked_section(damaged);
}

std::vector<std::string> Artifact::attachment_names() const {
  std::vector<std::string> names;
  for (const auto& [name, section] : attachments_) names.push_back(name);
  return names;
}

std::optional<std::string_view> Artifact::attachment(const std::string& name) const {
  const auto found = attachments_.find(name);
  if (found == attachments_.end()) return std::nullopt;
  const auto bytes = checked_section(found->second);
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

bool is_artifact(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<char, kMagic.size()> start = {};
  file.read(start.data(), start.size());
  return file.gcount() == static_cast<std::streamsize>(start.size()) &&
         has_magic(std::as_bytes(std::span(start)));
}

}  // namespace quern::artifact
