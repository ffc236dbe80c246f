// ONNX models for tests, written in ONNX's textual syntax (docs/Syntax.md of the ONNX project).
#pragma once

#include <gtest/gtest.h>
#include <onnx/defs/parser.h>
#include <onnx/onnx_pb.h>

#include <memory>
#include <string>

#include "formats/onnx/import.h"
#include "ir/error.h"

namespace quern::onnx_format::test {

inline constexpr const char* kHeader = "<ir_version: 8, opset_import: [\"\" : 17]> ";

// A whole model, or a graph alone.
inline onnx::ModelProto parse_text(const std::string& text) {
  onnx::ModelProto model;
  const std::string whole = text.front() == '<' ? text : kHeader + text;
  const auto status = onnx::OnnxParser::Parse(model, whole.c_str());
  if (!status.IsOK()) throw_error(ErrorCode::Internal, "the test's own model: ", status.ErrorMessage());
  return model;
}

inline ImportedModel import_bytes(std::string bytes) {
  auto owner = std::make_shared<std::string>(std::move(bytes));
  return import_model(std::as_bytes(std::span(owner->data(), owner->size())), owner, "m.onnx");
}

inline ImportedModel import_proto(const onnx::ModelProto& model) {
  return import_bytes(model.SerializeAsString());
}
inline ImportedModel import_text(const std::string& text) {
  return import_proto(parse_text(text));
}

}  // namespace quern::onnx_format::test
