// Artifacts: whole files, and manifests in a file whose checksums are right, since no mutation finds those.
#include <cstring>
#include <string>

#include "formats/artifact/artifact.h"
#include "formats/artifact/header.h"
#include "formats/file/checksum.h"
#include "tests/fuzz/fuzz.h"

namespace quern {
namespace {

// The sections of the seeds lie before this.
constexpr size_t kManifestAt = 8192;

std::string file_around(std::span<const std::byte> manifest) {
  std::string file(kManifestAt, '\1');
  file.append(reinterpret_cast<const char*>(manifest.data()), manifest.size());
  artifact::Header header;
  header.file_size = file.size();
  header.manifest_offset = kManifestAt;
  header.manifest_size = manifest.size();
  header.manifest_crc = crc32c(manifest);
  const auto head = artifact::encode(header);
  std::memcpy(file.data(), head.data(), head.size());
  return file;
}

}  // namespace

void fuzz::run(std::span<const std::byte> input) {
  std::string file;
  if (!artifact::has_magic(input)) {
    file = file_around(input);
    input = std::as_bytes(std::span(file));
  }
  const auto [owner, bytes] = own(input);
  const artifact::Artifact artifact = artifact::Artifact::parse(bytes, owner, "fuzz.quern");
  for (const std::string& name : artifact.attachment_names()) artifact.attachment(name);
}

}  // namespace quern
