#include "formats/onnx/external_data.h"

#include <algorithm>

#include "ir/error.h"

namespace quern::onnx_format {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const fs::path& file) {
  const fs::path folder = file.parent_path();
  return folder.empty() ? fs::path(".") : folder;
}

bool is_inside(const fs::path& file, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), file.begin(), file.end()).first == folder.end();
}

}  // namespace

ExternalFiles::ExternalFiles(std::optional<fs::path> model) {
  if (!model) return;
  folder_ = folder_of(*model);
  std::error_code error;
  const fs::path folder = fs::canonical(*folder_, error);
  if (!error) allowed_.push_back(folder);
  const fs::path resolved = fs::canonical(*model, error);
  if (!error && resolved.parent_path() != folder) allowed_.push_back(resolved.parent_path());
}

std::shared_ptr<const MappedFile> ExternalFiles::open(const std::string& location) {
  const auto found = files_.find(location);
  if (found != files_.end()) return found->second;
  if (!folder_) {
    throw_error(ErrorCode::InvalidModel, "its data is in the file '", location,
                "', but a model from memory can have no external data");
  }
  const fs::path relative(location);
  const bool climbs = std::find(relative.begin(), relative.end(), "..") != relative.end();
  if (location.empty() || location.find('\0') != std::string::npos || relative.is_absolute() || climbs) {
    throw_error(ErrorCode::InvalidModel, "its external data is in '", location,
                "'; only relative paths that stay in the model's folder are allowed");
  }
  const fs::path path = *folder_ / relative;
  std::error_code error;
  const fs::path resolved = fs::canonical(path, error);
  if (error == std::errc::no_such_file_or_directory) {
    throw_error(ErrorCode::InvalidModel, "its external data file '", path.string(),
                "' is missing; it belongs beside the model file");
  }
  if (error) {
    throw_error(ErrorCode::Io, "its external data file '", path.string(), "' cannot be opened (",
                error.message(), ")");
  }
  if (std::none_of(allowed_.begin(), allowed_.end(),
                   [&](const auto& ok) { return is_inside(resolved, ok); })) {
    throw_error(ErrorCode::InvalidModel, "its external data file '", path.string(), "' is a link to '",
                resolved.string(), "', outside the model's folder, which is not allowed");
  }
  auto file = MappedFile::open(path);
  files_[location] = file;
  return file;
}

ExternalFiles::Bytes ExternalFiles::find(const ExternalLocation& where, uint64_t wanted) {
  if (where.length && *where.length != wanted) {
    throw_error(ErrorCode::InvalidModel, "its external data is said to be ", *where.length,
                " bytes long, but its shape takes ", wanted);
  }
  auto file = open(where.location);
  const auto bytes = file->slice(where.offset, wanted, "the external data");
  return {std::move(file), bytes};
}

std::vector<fs::path> ExternalFiles::opened() const {
  std::vector<fs::path> paths;
  for (const auto& [location, file] : files_) paths.push_back(file->path());
  return paths;
}

}  // namespace quern::onnx_format
