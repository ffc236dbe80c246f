// Inputs of models as files of one tensor each, in the layout of ONNX's backend tests.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace quern::onnx_format {

// Whether `path` is a .pb file, or a folder that holds input_0.pb ..., or folders test_data_set_0 ... of
// such.
bool is_input_sets(const std::filesystem::path& path);

struct InputSets {
  // One array for each input, by name: those of the sets one after the other along the first axis.
  std::map<std::string, Tensor> arrays;
  // SHA-256 over the SHA-256 of the files, in their order.
  std::string digest;
};

// For a graph with these inputs. input_K.pb is a TensorProto for the input of its name, or, where no input
// has that name, for input K. A .pb file alone is the set of a model with one input. Throws Error{Io}, and
// Error{BadData} naming the file for one that is missing, or damaged, or whose type or shape is not the
// input's, or not like that of the sets before (but for the first axis, which counts samples).
InputSets read_input_sets(const std::filesystem::path& path, const std::vector<Value*>& inputs);
// InputSets::digest without reading tensors.
std::string digest_of_input_sets(const std::filesystem::path& path);

}  // namespace quern::onnx_format
