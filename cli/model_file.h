// Models as the commands open them, whatever their file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/console.h"
#include "formats/tokenizer/tokenizer.h"
#include "ir/graph.h"

namespace quern::cli {

struct ModelFile {
  std::filesystem::path path;                      // of the model file itself
  std::string format;                              // "ONNX" or "quern"
  std::vector<std::filesystem::path> files;        // with its external data
  int64_t size_bytes = 0;                          // of all files
  std::shared_ptr<Graph> graph;                    // as the file has it
  std::map<std::string, std::string> attachments;  // of an artifact, by name
};

// Opens an ONNX model or an artifact, told apart by their content; of a folder, the one model in it. Oddities
// are warnings on the console. Throws Error, as the formats do.
ModelFile open_model_file(const std::filesystem::path& path, Console& console);

// Throws Error{Unsupported} naming the file and every node that nothing here computes.
void check_supported(const ModelFile& model);

// SHA-256 over the contents of all files, in their order.
std::string digest_of(const ModelFile& model);

}  // namespace quern::cli
