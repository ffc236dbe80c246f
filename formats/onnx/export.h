// Writes ONNX files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "ir/graph.h"

namespace quern::onnx_format {

struct ExportOptions {
  // Where the constants take more bytes than this, those of 1 KiB and more go into "<file name>.data" beside
  // the model. Protobuf allows no more than 2 GiB inline.
  int64_t external_over = int64_t{1} << 30;
  // If set: what to write in place of a plain constant, of the same type. Called for each in order; the
  // result is released before the next, so that models larger than memory can be written.
  std::function<Tensor(const Value&)> data = {};
};

// Writes `graph` to `path`. Importing it again gives the same graph: names, operators, attributes, types,
// constants, sub-graphs and metadata. Quantized and packed constants are written as their codes behind a
// DequantizeLinear. Atomic for each file, the data file first; deterministic. Throws Error{Io};
// Error{Unsupported} where nodes are written in versions of one operator set that no single version
// satisfies, naming two of them.
void export_model(const Graph& graph, const std::filesystem::path& path, const ExportOptions& options = {});

}  // namespace quern::onnx_format
