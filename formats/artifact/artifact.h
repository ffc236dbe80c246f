// Reads .quern files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/artifact/writer.h"
#include "ir/graph.h"

namespace quern::artifact {

struct OpenOptions {
  // Compares the checksum of every section, which reads the whole file. The header, the manifest and
  // attachments are checked in any case.
  bool verify = false;
};

// An open artifact. Its graph is whole and verified; constants of 1 KiB and more are views of the mapped file
// and keep it alive, also beyond this object. Opening reads the manifest, not the weights.
class Artifact {
 public:
  // Throws Error{Io}; Error{Corrupt} for what is no artifact, truncated, damaged or inconsistent;
  // Error{Unsupported} for a newer format version; Error{InvalidModel} for a graph that breaks the rules of
  // ir/verifier.h.
  static Artifact open(const std::filesystem::path& path, const OpenOptions& options = {});
  // The same from memory that `owner` keeps alive, aligned to 64 bytes (else it is copied); `name` is for
  // messages.
  static Artifact parse(std::span<const std::byte> bytes, std::shared_ptr<const void> owner, std::string name,
                        const OpenOptions& options = {});

  ~Artifact();
  Artifact(Artifact&&) noexcept;
  Artifact& operator=(Artifact&&) noexcept;

  const Graph& graph() const { return *graph_; }
  // Hands the graph over; graph() must not be called afterwards.
  std::unique_ptr<Graph> take_graph() { return std::move(graph_); }

  const std::string& producer() const { return producer_; }
  uint32_t version() const { return version_; }
  uint64_t file_size() const { return bytes_.size(); }
  const std::vector<SourceFile>& sources() const { return sources_; }

  std::vector<std::string> attachment_names() const;
  // Nothing where there is none of that name. Valid as long as this object. Throws Error{Corrupt} if it is
  // damaged.
  std::optional<std::string_view> attachment(const std::string& name) const;

  // Where everything lies, in the order of the file.
  struct Section {
    std::string name;
    uint64_t offset;
    uint64_t size;
    uint32_t crc;
  };
  const std::vector<Section>& sections() const { return sections_; }
  // Compares the checksums of all sections. Throws Error{Corrupt} naming the first that is damaged.
  void verify() const;

 private:
  Artifact() = default;
  void load();
  std::span<const std::byte> checked_section(size_t index) const;

  std::string name_;
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
  std::unique_ptr<Graph> graph_;
  std::string producer_;
  uint32_t version_ = 0;
  std::vector<SourceFile> sources_;
  std::vector<Section> sections_;
  std::map<std::string, uint32_t> attachments_;
};

// Whether the file at `path` begins like an artifact. False for what cannot be opened.
bool is_artifact(const std::filesystem::path& path);

}  // namespace quern::artifact
