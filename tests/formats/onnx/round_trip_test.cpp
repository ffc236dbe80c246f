// Import, export and import again of models from everywhere: nothing may change.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "formats/onnx/export.h"
#include "formats/onnx/import.h"
#include "tests/support/graph_compare.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace quern::onnx_format {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> models_under(const fs::path& folder) {
  std::vector<fs::path> models;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".onnx") models.push_back(entry.path());
  }
  std::sort(models.begin(), models.end());
  return models;
}

void expect_round_trip(const fs::path& model, const ExportOptions& options) {
  const test::TempDir dir = test::TempDir::in_memory();
  const ImportedModel first = import_model(model);
  export_model(*first.graph, dir / "out.onnx", options);
  const ImportedModel second = import_model(dir / "out.onnx");
  EXPECT_TRUE(test::same_graph(*first.graph, *second.graph)) << model;
}

TEST(OnnxRoundTrip, SharedModels) {
  QUERN_NEEDS_SHARED("models");
  for (const fs::path& model : models_under(test::shared_path("models"))) {
    SCOPED_TRACE(model);
    expect_round_trip(model, {});
    expect_round_trip(model, {.external_over = 0});
  }
}

TEST(OnnxRoundTrip, SharedGraphs) {
  QUERN_NEEDS_SHARED("graphs");
  for (const fs::path& model : models_under(test::shared_path("graphs"))) expect_round_trip(model, {});
}

// The models of ONNX's own backend tests, from the distribution's package.
TEST(OnnxRoundTrip, BackendTests) {
  const fs::path folder = "/usr/share/libonnx-testdata/data";
  if (!fs::exists(folder)) GTEST_SKIP() << "needs the package libonnx-testdata";
  for (const fs::path& model : models_under(folder)) {
    SCOPED_TRACE(model);
    try {
      expect_round_trip(model, {});
    } catch (const Error& error) {
      const bool known =
          std::string(error.what()).find("optionals of anything but tensors") != std::string::npos;
      EXPECT_TRUE(known) << error.what();
    }
  }
}

}  // namespace
}  // namespace quern::onnx_format
