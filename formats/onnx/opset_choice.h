// One version per operator set, as an ONNX file wants it.
#pragma once

#include <map>
#include <string>

#include "ir/graph.h"

namespace quern::onnx_format {

// For every domain that `graph` and its sub-graphs use or import, a version under which each node means what
// it means in its own: the imported version where that will do. Throws Error{Unsupported} naming two nodes
// where there is none.
std::map<std::string, int> choose_opsets(const Graph& graph);

}  // namespace quern::onnx_format
