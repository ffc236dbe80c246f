// Models as the commands open them, whatever their file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/console.h"
#include "formats/artifact/writer.h"
#include "ir/graph.h"
#include "passes/model_folder.h"

namespace quern::cli {

struct ModelFile {
  std::filesystem::path path;                 // of the model file itself
  std::string format;                         // "ONNX", "quern artifact"
  std::vector<std::filesystem::path> files;   // with its external data
  int64_t size_bytes = 0;                     // of all files
  std::shared_ptr<Graph> graph;               // as the file has it
  passes::ModelFolder folder;                 // tokenizer and configuration, once read_folder() was called
  std::string recipe;                         // of an artifact: JSON of what made it
  std::vector<artifact::SourceFile> sources;  // of an artifact: what it was made from

  bool is_artifact() const { return format != "ONNX"; }
};

// Opens an ONNX model or an artifact, told apart by their content; of a folder, the one model in it. Oddities
// are warnings on the console. With `verify` the checksums of an artifact's weights are compared, which reads
// them. Throws Error, as the formats do.
ModelFile open_model_file(const std::filesystem::path& path, Console& console, bool verify = false);

// Reads what lies beside an ONNX model, or is in an artifact, into model.folder; `tokenizer`: in place of its
// own, as passes::find_tokenizer() takes it. Throws as passes::read_model_folder().
void read_folder(ModelFile& model, const std::optional<std::string>& tokenizer);

// Makes the recognised decoder of an ONNX model agree with model.folder. Returns warnings: where the files
// beside it contradict one another or the graph.
std::vector<std::string> apply_folder(ModelFile& model);

// Throws Error{Unsupported} naming the file and every node that nothing here computes.
void check_supported(const ModelFile& model);

// SHA-256 over the contents of all files, in their order.
std::string digest_of(const ModelFile& model);

}  // namespace quern::cli
