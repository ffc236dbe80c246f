// The order in which the nodes of an ONNX graph can be built.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "formats/onnx/proto.h"

namespace quern::onnx_format {

using NodeProtos = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

// Indices into `nodes`, each after those whose outputs it needs, its sub-graphs included; in the order of the
// file where that is possible. Throws Error{InvalidModel} naming the node where a name is given twice or
// nodes depend on one another in a circle.
std::vector<int> build_order(const NodeProtos& nodes);

// Names that `graph` takes from around it.
std::set<std::string> free_names(const onnx::GraphProto& graph);

}  // namespace quern::onnx_format
