#include "formats/onnx/export.h"

#include <algorithm>
#include <climits>
#include <optional>

#include "formats/file/atomic_file.h"
#include "formats/onnx/graph_writer.h"
#include "formats/onnx/opset_choice.h"
#include "formats/onnx/tensor_data.h"
#include "ir/error.h"

namespace quern::onnx_format {
namespace {

constexpr int64_t kSmallestExternal = 1024;
constexpr uint64_t kPage = 4096;  // large tensors begin on one, so that others can map them, too

int64_t constant_bytes(const Graph& graph) {
  int64_t bytes = 0;
  for (const Value* value : graph.constants()) bytes += byte_size(*value->constant());
  for (const Node* node : graph.nodes()) {
    for (const Graph* sub : node->subgraphs()) bytes += constant_bytes(*sub);
  }
  return bytes;
}

// The first IR version that has the type (onnx.proto's history).
int ir_version_of(DType dtype) {
  switch (dtype) {
    case DType::F8E4M3:
    case DType::F8E4M3FNUZ:
    case DType::F8E5M2:
    case DType::F8E5M2FNUZ:
      return 9;
    case DType::I4:
    case DType::U4:
      return 10;
    case DType::F4E2M1:
      return 11;
    case DType::F8E8M0:
      return 12;
    case DType::I2:
    case DType::U2:
      return 13;
    default:
      return 4;  // since when initializers need not be inputs
  }
}

int needed_ir_version(const Graph& graph) {
  int version = 4;
  for (const Value* value : graph.values()) {
    version = std::max(version, ir_version_of(value->dtype()));
    if (const Tensor* tensor = value->tensor()) version = std::max(version, ir_version_of(tensor->dtype()));
    if (const auto* quantized = value->quantized()) {
      version = std::max(version, ir_version_of(quantized->scheme.code));
    }
    if (const auto* packed = value->packed())
      version = std::max(version, ir_version_of(packed->spec().dtype()));
  }
  for (const Node* node : graph.nodes()) {
    for (const Graph* sub : node->subgraphs()) version = std::max(version, needed_ir_version(*sub));
  }
  return version;
}

int64_t number_or(const std::string& text, int64_t fallback) {
  const bool digits =
      !text.empty() && text.size() < 18 && text.find_first_not_of("0123456789") == std::string::npos;
  return digits ? std::stoll(text) : fallback;
}

// The inverse of what import makes of it.
void write_metadata(const Graph& graph, onnx::ModelProto& model) {
  constexpr int kDefaultIrVersion = 8;
  model.set_ir_version(std::max(kDefaultIrVersion, needed_ir_version(graph)));
  model.set_producer_name("quern");
  for (const auto& [key, value] : graph.metadata()) {
    if (key == "onnx.ir_version") {
      model.set_ir_version(std::max<int64_t>(number_or(value, kDefaultIrVersion), needed_ir_version(graph)));
    } else if (key == "onnx.producer_name") {
      model.set_producer_name(value);
    } else if (key == "onnx.producer_version") {
      model.set_producer_version(value);
    } else if (key == "onnx.domain") {
      model.set_domain(value);
    } else if (key == "onnx.model_version") {
      model.set_model_version(number_or(value, 0));
    } else if (key == "onnx.doc_string") {
      model.set_doc_string(value);
    } else {
      auto& entry = *model.add_metadata_props();
      entry.set_key(key);
      entry.set_value(value);
    }
  }
}

onnx::TensorProto write_external(const Tensor& tensor, AtomicFile& data, const std::string& location) {
  data.align(tensor.byte_size() >= (int64_t{1} << 20) ? kPage : 64);
  onnx::TensorProto proto = tensor_header_to_onnx(tensor);
  proto.set_data_location(onnx::TensorProto::EXTERNAL);
  const auto add = [&](const char* key, const std::string& value) {
    auto& entry = *proto.add_external_data();
    entry.set_key(key);
    entry.set_value(value);
  };
  add("location", location);
  add("offset", std::to_string(data.size()));
  add("length", std::to_string(tensor.byte_size()));
  data.write(std::span(tensor.bytes(), static_cast<size_t>(tensor.byte_size())));
  return proto;
}

}  // namespace

void export_model(const Graph& graph, const std::filesystem::path& path, const ExportOptions& options) {
  with_context("exporting '" + path.string() + "'", [&] {
    onnx::ModelProto model;
    write_metadata(graph, model);
    std::map<std::string, int> opsets = choose_opsets(graph);
    if (opsets.empty()) opsets[""] = 17;  // a file must import something
    for (const auto& [domain, version] : opsets) {
      auto& import = *model.add_opset_import();
      import.set_domain(domain);
      import.set_version(version);
    }
    std::optional<AtomicFile> data;
    const std::string location = path.filename().string() + ".data";
    if (constant_bytes(graph) > options.external_over) data.emplace(path.parent_path() / location);
    const TensorWriter write_tensor = [&](const Tensor& tensor) {
      const bool external =
          data && tensor.dtype() != DType::String && tensor.byte_size() >= kSmallestExternal;
      return external ? write_external(tensor, *data, location) : tensor_to_onnx(tensor);
    };
    const auto version = opsets.find("");
    GraphWriter(write_tensor, version != opsets.end() ? version->second : 0, options.data)
        .write(graph, *model.mutable_graph());
    if (model.ByteSizeLong() > INT_MAX) {
      throw_error(ErrorCode::InvalidArgument,
                  "the model takes more than the 2 GiB that protobuf allows; let more of "
                  "it go into external data");
    }
    std::string bytes;
    if (!model.SerializeToString(&bytes))
      throw_error(ErrorCode::Internal, "the model could not be serialized");
    if (data) data->commit();
    write_file(path, bytes);
  });
}

}  // namespace quern::onnx_format
