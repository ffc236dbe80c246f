#include "formats/artifact/writer.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "formats/artifact/artifact.h"
#include "formats/artifact/graph_encoder.h"
#include "formats/artifact/header.h"
#include "formats/file/atomic_file.h"
#include "formats/file/checksum.h"
#include "formats/file/mapped_file.h"
#include "ir/error.h"

namespace quern::artifact {

class Writer::State {
 public:
  explicit State(const std::filesystem::path& target) : file(target), name(target.string()) {
    file.write(std::string(kHeaderSize, '\0'));
    manifest.set_producer("quern " QUERN_VERSION);
  }

  uint32_t add_section(std::span<const std::byte> bytes, const std::string& section_name) {
    file.align(bytes.size() >= kPageAlignedFrom ? kPage : kSectionAlignment);
    proto::Section& section = *manifest.add_sections();
    section.set_offset(file.size());
    section.set_size(bytes.size());
    section.set_crc32c(crc32c(bytes));
    section.set_name(section_name);
    file.write(bytes);
    return static_cast<uint32_t>(manifest.sections_size() - 1);
  }

  AtomicFile file;
  std::string name;
  proto::Manifest manifest;
  std::map<std::string, uint32_t> attachments;
};

Writer::Writer(const std::filesystem::path& target) : state_(std::make_unique<State>(target)) {}
Writer::~Writer() = default;

void Writer::write_graph(const Graph& graph, const ConstantFilter& filter) {
  if (state_->manifest.has_graph()) throw_error(ErrorCode::Internal, "an artifact has one graph");
  const auto add_section = [this](std::span<const std::byte> bytes, const std::string& name) {
    return state_->add_section(bytes, name);
  };
  with_context("writing '" + state_->name + "'", [&] {
    GraphEncoder(state_->manifest, add_section, filter).encode(graph, *state_->manifest.mutable_graph());
  });
}

void Writer::add_attachment(const std::string& name, std::string_view bytes) {
  state_->attachments[name] = state_->add_section(std::as_bytes(std::span(bytes.data(), bytes.size())), name);
}

void Writer::add_source(const SourceFile& source) {
  proto::SourceFile& file = *state_->manifest.add_source();
  file.set_name(source.name);
  file.set_size(source.size);
  file.set_sha256(source.sha256);
}

void Writer::finish() {
  proto::Manifest& manifest = state_->manifest;
  if (!manifest.has_graph()) throw_error(ErrorCode::Internal, "an artifact needs a graph");
  for (const auto& [name, section] : state_->attachments) {
    proto::Attachment& attachment = *manifest.add_attachments();
    attachment.set_name(name);
    attachment.set_section(section);
  }
  std::string bytes;
  if (manifest.ByteSizeLong() > INT32_MAX || !manifest.SerializeToString(&bytes)) {
    throw_error(ErrorCode::Unsupported, "the graph of '", state_->name,
                "' takes more than 2 GiB without its weights");
  }
  AtomicFile& file = state_->file;
  file.align(kSectionAlignment);
  Header header;
  header.manifest_offset = file.size();
  header.manifest_size = bytes.size();
  header.manifest_crc = crc32c(std::as_bytes(std::span(bytes)));
  file.write(bytes);
  header.file_size = file.size();
  file.write_at(0, encode(header));
  file.commit();
}

SourceFile describe_source(const std::filesystem::path& path) {
  return {path.filename().string(), MappedFile::open(path)->size(), sha256_of_file(path)};
}

void set_attachment(const std::filesystem::path& path, const std::string& name, std::string_view bytes) {
  const Artifact old = Artifact::open(path);
  Writer writer(path);
  writer.write_graph(old.graph());
  for (const std::string& other : old.attachment_names()) {
    if (other != name) writer.add_attachment(other, *old.attachment(other));
  }
  writer.add_attachment(name, bytes);
  for (const SourceFile& source : old.sources()) writer.add_source(source);
  writer.finish();
}

}  // namespace quern::artifact
