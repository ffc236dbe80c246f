// Reads ONNX files.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace quern::onnx_format {

struct ImportedModel {
  std::unique_ptr<Graph> graph;
  // The model file first, then its external data files: what a digest of the source goes over.
  std::vector<std::filesystem::path> files;
  // What was odd, but no obstacle: declared shapes that computing contradicts.
  std::vector<std::string> warnings;
};

// Opens a model of any IR version: graph, initializers and constants (inline, sparse, or in external files),
// sub-graphs with their scopes, symbolic dimensions and metadata. Types and shapes are inferred, and the
// graph is verified.
//
// - Constant nodes become constants. A graph input that has an initializer becomes a constant too.
// - Local functions are inlined; values inside get the name of the calling node in front. A function for an
// operator
//   that quern knows by itself (com.microsoft) is not used.
// - Nodes may stand in any order.
// - Weights are views of the mapped files where these have them aligned, and are not read; the tensors keep
// the
//   mappings alive.
// - metadata() has the model's metadata_props, and under "onnx." what else the file says of itself:
// onnx.ir_version,
//   onnx.producer_name, onnx.producer_version, onnx.domain, onnx.model_version, onnx.doc_string.
//
// Throws Error{Io} for files that cannot be opened, Error{Corrupt} for what is no ONNX model or is truncated,
// Error{InvalidModel} naming node or tensor for what breaks ONNX's rules, Error{Unsupported} naming
// everything that quern has no place for, all at once. Operators that quern does not know are no error here.
ImportedModel import_model(const std::filesystem::path& path);

// The same from memory that `owner` keeps alive; `name` is for messages. External data is refused.
ImportedModel import_model(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                           const std::string& name);

}  // namespace quern::onnx_format
