// Weights kept in files beside the model.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/file/mapped_file.h"

namespace quern::onnx_format {

// Where a tensor says its bytes are.
struct ExternalLocation {
  std::string location;  // relative to the folder of the model
  uint64_t offset = 0;
  std::optional<uint64_t> length;
};

// Opens each file once. Refuses every location that is absolute, climbs out of the model's folder, or leads
// out of it by a symbolic link: a model from elsewhere must not be able to read the user's files. A model
// that is itself a link (as in a cache of downloads) may also have its data where the link leads.
class ExternalFiles {
 public:
  // Without a model file, no external data is allowed.
  explicit ExternalFiles(std::optional<std::filesystem::path> model);

  struct Bytes {
    std::shared_ptr<const MappedFile> file;
    std::span<const std::byte> bytes;
  };
  // `wanted` bytes at `where`. Throws Error{InvalidModel} for a location that is not allowed, a file that is
  // missing or a length other than `wanted`, Error{Io} for a file that cannot be opened, Error{Corrupt} for
  // one that is too short.
  Bytes find(const ExternalLocation& where, uint64_t wanted);

  // The files opened so far, in order of their names.
  std::vector<std::filesystem::path> opened() const;

 private:
  std::shared_ptr<const MappedFile> open(const std::string& location);

  std::optional<std::filesystem::path> folder_;
  std::vector<std::filesystem::path> allowed_;  // resolved folders
  std::map<std::string, std::shared_ptr<const MappedFile>> files_;
};

}  // namespace quern::onnx_format
