#include "formats/onnx/import.h"

#include <climits>
#include <string_view>

#include "formats/file/mapped_file.h"
#include "formats/onnx/graph_builder.h"
#include "formats/onnx/wire_scan.h"
#include "ir/error.h"
#include "ir/shape_inference.h"
#include "ir/verifier.h"

namespace quern::onnx_format {
namespace {

// Files that are often found where a model should be.
void check_is_no_other_format(std::span<const std::byte> bytes) {
  const std::string_view start(reinterpret_cast<const char*>(bytes.data()),
                               std::min<size_t>(bytes.size(), 64));
  if (bytes.empty()) throw_error(ErrorCode::Corrupt, "the file is empty");
  if (start.starts_with("version https://git-lfs")) {
    throw_error(ErrorCode::Corrupt,
                "the file is a Git LFS pointer, not a model; fetch the model with 'git lfs pull'");
  }
}

onnx::ModelProto parse(const SlimModel& slim) {
  onnx::ModelProto model;
  if (slim.bytes.size() > INT_MAX) {
    throw_error(ErrorCode::Unsupported,
                "more than 2 GiB beside the raw data of tensors; store the weights as raw_data "
                "or as external data");
  }
  if (!model.ParseFromString(slim.bytes)) {
    throw_error(ErrorCode::Corrupt,
                "not a well-formed ONNX model; the file may be damaged or of another format");
  }
  if (!model.has_graph()) {
    throw_error(ErrorCode::Corrupt, "not an ONNX model: it holds no graph");
  }
  return model;
}

void add_metadata(const onnx::ModelProto& model, Graph& graph, const Opsets& opsets) {
  Rewriter rewriter(graph);
  for (const auto& entry : model.metadata_props()) rewriter.set_metadata(entry.key(), entry.value());
  const auto note = [&](const char* key, const std::string& value) {
    if (!value.empty()) rewriter.set_metadata(std::string("onnx.") + key, value);
  };
  if (model.has_ir_version()) note("ir_version", std::to_string(model.ir_version()));
  note("producer_name", model.producer_name());
  note("producer_version", model.producer_version());
  note("domain", model.domain());
  if (model.model_version() != 0) note("model_version", std::to_string(model.model_version()));
  note("doc_string", model.doc_string());
  for (const auto& [domain, version] : opsets) rewriter.set_opset(domain, version);
  rewriter.commit();
}

ImportedModel import(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                     ExternalFiles& external) {
  check_is_no_other_format(bytes);
  SlimModel slim = slim_down(bytes);
  const onnx::ModelProto model = parse(slim);
  slim.bytes = std::string();
  const TensorReader tensors(std::move(owner), std::move(slim.payloads), external);
  const FunctionLibrary functions(model);
  ImportState state{.tensors = tensors, .functions = functions, .opsets = read_opsets(model.opset_import())};
  // Before IR 3 a model imported nothing and meant version 1.
  if (model.opset_import_size() == 0) state.opsets[""] = 1;

  ImportedModel result;
  result.graph = std::make_unique<Graph>(model.graph().name());
  try {
    GraphBuilder(state, *result.graph).build(model.graph(), nullptr);
    add_metadata(model, *result.graph, state.opsets);
    if (!state.problems.any()) {
      infer_shapes(*result.graph);
      verify(*result.graph);
    }
  } catch (const Error&) {
    // What is missing because it is not supported makes errors of its own; the cause is what helps.
    state.problems.throw_if_any();
    throw;
  }
  state.problems.throw_if_any();
  result.warnings = std::move(state.warnings);
  return result;
}

}  // namespace

ImportedModel import_model(const std::filesystem::path& path) {
  return with_context("importing '" + path.string() + "'", [&] {
    const auto file = MappedFile::open(path);
    ExternalFiles external(path);
    ImportedModel model = import(file->bytes(), file, external);
    model.files = {path};
    for (auto& opened : external.opened()) model.files.push_back(std::move(opened));
    return model;
  });
}

ImportedModel import_model(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                           const std::string& name) {
  return with_context("importing '" + name + "'", [&] {
    ExternalFiles external(std::nullopt);
    return import(bytes, std::move(owner), external);
  });
}

}  // namespace quern::onnx_format
