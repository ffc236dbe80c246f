#include "cli/model_file.h"

#include <algorithm>
#include <array>
#include <fstream>

#include "formats/artifact/artifact.h"
#include "formats/file/checksum.h"
#include "formats/file/mapped_file.h"
#include "formats/onnx/import.h"
#include "runtime/interpreter.h"

namespace quern::cli {
namespace {

bool is_model_name(const std::filesystem::path& path) {
  return path.extension() == ".onnx" || path.extension() == ".quern";
}

// The model file in a folder, by the names that exporters give it; else the only one there.
std::filesystem::path model_in(const std::filesystem::path& folder, Console& console) {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (is_model_name(entry.path())) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  if (found.size() == 1) return found.front();
  for (const char* usual : {"model.onnx", "decoder_model_merged.onnx"}) {
    const auto match = std::find(found.begin(), found.end(), folder / usual);
    if (match == found.end()) continue;
    console.note(
        concat("taking '", usual, "' of the ", found.size(), " models in '", one_line(folder.string()), "'"));
    return *match;
  }
  if (found.empty()) {
    throw_error(ErrorCode::Io, "'", folder.string(), "' holds no model: neither an .onnx nor a .quern file");
  }
  std::string names;
  for (const auto& path : found) names += (names.empty() ? "" : ", ") + path.filename().string();
  throw_error(ErrorCode::InvalidArgument, "'", folder.string(), "' holds several models (", names,
              "); name one");
}

// What a file is that begins like nothing of ours; empty where it may well be ONNX.
std::string foreign_format(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<char, 64> bytes{};
  file.read(bytes.data(), bytes.size());
  const std::string_view start(bytes.data(), static_cast<size_t>(file.gcount()));
  static constexpr std::pair<std::string_view, const char*> kStarts[] = {
      {"GGUF", "a GGUF file of llama.cpp"},
      {"PK\x03\x04", "a ZIP archive, as PyTorch saves models"},
      {"version https://git-lfs", "a pointer of Git LFS (`git lfs pull` fetches the file itself)"},
      {"\x93NUMPY", "an array of NumPy"},
      {"QUERNKV1", "a prefix cache (for --prefix-cache)"},
      {"QUERNDS1", "a datastore (for --datastore)"},
      {"<", "a page of HTML or XML"}};
  for (const auto& [magic, name] : kStarts) {
    if (start.starts_with(magic)) return name;
  }
  // Eight bytes of length, then JSON.
  if (start.size() > 9 && start[8] == '{' && start[6] == 0 && start[7] == 0) return "a safetensors file";
  const size_t first = start.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && start[first] == '{' ? "JSON" : "";
}

void open_onnx(ModelFile& model, Console& console) {
  if (const std::string format = foreign_format(model.path); !format.empty()) {
    throw_error(ErrorCode::InvalidModel, "'", model.path.string(), "' is ", format,
                "; a model is an .onnx file, a .quern artifact or a folder with one");
  }
  onnx_format::ImportedModel imported = onnx_format::import_model(model.path);
  for (const std::string& warning : imported.warnings) console.warn(model.path.string() + ": " + warning);
  model.format = "ONNX";
  model.graph = std::move(imported.graph);
  model.files = std::move(imported.files);
}

void open_artifact(ModelFile& model, bool verify) {
  artifact::Artifact artifact = artifact::Artifact::open(model.path, {.verify = verify});
  model.format = "quern artifact";
  model.files = {model.path};
  model.sources = artifact.sources();
  if (const auto recipe = artifact.attachment(artifact::kRecipe)) model.recipe = *recipe;
  model.graph = artifact.take_graph();
}

}  // namespace

ModelFile open_model_file(const std::filesystem::path& path, Console& console, bool verify) {
  std::error_code ignored;
  ModelFile model;
  model.path = std::filesystem::is_directory(path, ignored) ? model_in(path, console) : path;
  if (artifact::is_artifact(model.path) || model.path.extension() == ".quern") {
    open_artifact(model, verify);
  } else {
    open_onnx(model, console);
  }
  for (const auto& file : model.files)
    model.size_bytes += static_cast<int64_t>(std::filesystem::file_size(file));
  return model;
}

void check_supported(const ModelFile& model) {
  with_context(concat("checking '", model.path.string(), "'"),
               [&] { runtime::check_supported(*model.graph); });
}

void read_folder(ModelFile& model, const std::optional<std::string>& tokenizer) {
  if (!model.is_artifact()) {
    model.folder = passes::read_model_folder(
        model.path, tokenizer ? std::optional<std::filesystem::path>(*tokenizer) : std::nullopt);
    return;
  }
  model.folder = passes::read_model_folder(artifact::Artifact::open(model.path));
  if (tokenizer) model.folder.tokenizer = passes::find_tokenizer(*tokenizer);
}

std::vector<std::string> apply_folder(ModelFile& model) {
  std::vector<std::string> contradictions = passes::find_contradictions(model.path, *model.graph);
  passes::apply_context_length(model.folder, *model.graph);
  return contradictions;
}

std::string digest_of(const ModelFile& model) {
  Sha256 hash;
  for (const auto& path : model.files) {
    const auto file = MappedFile::open(path);
    hash.update(file->bytes());
    file->drop_pages(file->bytes());
  }
  return to_hex(hash.finish());
}

}  // namespace quern::cli
