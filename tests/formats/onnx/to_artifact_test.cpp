// From ONNX into an artifact and back into memory: nothing may change. Also shows that protobuf's full
// library, which ONNX needs, and its lite one, which artifacts need, live in one process.
#include <gtest/gtest.h>

#include <algorithm>

#include "formats/artifact/artifact.h"
#include "formats/onnx/import.h"
#include "tests/support/graph_compare.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace quern::onnx_format {
namespace {

namespace fs = std::filesystem;

void expect_same_through_artifact(const fs::path& model) {
  const test::TempDir dir = test::TempDir::in_memory();
  const ImportedModel imported = import_model(model);
  artifact::Writer writer(dir / "a.quern");
  writer.write_graph(*imported.graph);
  writer.finish();
  const artifact::Artifact read = artifact::Artifact::open(dir / "a.quern", {.verify = true});
  EXPECT_TRUE(test::same_graph(*imported.graph, read.graph())) << model;
}

TEST(OnnxToArtifact, Fixtures) {
  for (const char* name : {"element_types.onnx", "functions.onnx", "external.onnx"}) {
    expect_same_through_artifact(test::source_path(std::string("tests/formats/onnx/fixtures/") + name));
  }
}

TEST(OnnxToArtifact, SharedModels) {
  QUERN_NEEDS_SHARED("models");
  for (const char* folder : {"models", "graphs"}) {
    for (const auto& entry : fs::recursive_directory_iterator(test::shared_path(folder))) {
      if (entry.path().extension() == ".onnx") expect_same_through_artifact(entry.path());
    }
  }
}

}  // namespace
}  // namespace quern::onnx_format
