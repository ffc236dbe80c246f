// ONNX's messages, and the small things that several files here do with them.
#pragma once

#include <onnx/onnx_pb.h>

#include <string>
#include <vector>

#include "ir/graph.h"

namespace quern::onnx_format {

// The DType of a TensorProto.DataType, Undefined where quern has none. A plain int: newer files hold numbers
// that the installed ONNX has no name for.
DType dtype_from_onnx(int data_type);
// Throws Error{Internal} for Undefined.
int dtype_to_onnx(DType dtype);
// "complex64", or "type 99".
std::string onnx_type_name(int data_type);

// Undefined and without shape where the message says nothing. Symbols that begin with '?' are quern's own and
// get fresh ones instead: `fresh` holds them by name. Throws Error{Unsupported} for maps, sparse and opaque
// types, and sequences of sequences.
ValueType type_from_onnx(const onnx::TypeProto& type, std::map<std::string, Dim>& fresh);
onnx::TypeProto type_to_onnx(const ValueType& type);

// "node 'x' (MatMul)" or "MatMul node producing 'y'".
std::string describe(const onnx::NodeProto& node);

// The strings of a string, bytes or message field that the installed ONNX may be too old to know.
std::vector<std::string> newer_field(const google::protobuf::Message& message, int number);
std::string newer_string(const google::protobuf::Message& message, int number);

inline constexpr int kNodeOverload = 8;       // NodeProto.overload, since IR 10
inline constexpr int kFunctionDefaults = 11;  // FunctionProto.attribute_proto, since IR 9
inline constexpr int kFunctionOverload = 13;  // FunctionProto.overload, since IR 10

// A domain as the graph has it: "ai.onnx" is "".
std::string normal_domain(const std::string& domain);

// `name` in quotes, shortened where a file made it absurdly long.
std::string quoted(const std::string& name);

}  // namespace quern::onnx_format
