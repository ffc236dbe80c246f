// The node cases of ONNX's backend suite once more, after quern's passes and its export for other runtimes:
// valid to ONNX's own checker, and with the outputs that the suite states.
#include <gtest/gtest.h>
#include <onnx/checker.h>
#include <onnx/onnx_pb.h>

#include "formats/file/mapped_file.h"
#include "formats/onnx/export.h"
#include "formats/onnx/import.h"
#include "passes/compile.h"
#include "passes/interchange/interchange.h"
#include "tests/runtime/reference/backend_cases.h"
#include "tests/runtime/reference/expected_gaps.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace quern::test {
namespace {

constexpr int kCheckerVersion = 17;  // the newest of ai.onnx that the distribution's libonnx knows

void expect_valid(const std::filesystem::path& path) {
  onnx::ModelProto model;
  ASSERT_TRUE(model.ParseFromString(read_text(path)));
  for (const auto& opset : model.opset_import()) {
    if (opset.domain().empty() && opset.version() > kCheckerVersion) return;
  }
  model.set_ir_version(std::min<int64_t>(model.ir_version(), onnx::IR_VERSION));
  EXPECT_NO_THROW(onnx::checker::check_model(model));
}

// The name of why it cannot be exported, or nothing.
std::string expect_same_after_export(const BackendCase& test) {
  LoadedCase loaded = load(test);
  const TempDir dir = TempDir::in_memory();
  try {
    passes::prepare_for_execution(*loaded.graph);
    const auto exported = passes::to_interchange(
        *loaded.graph, {.style = passes::WeightStyle::Plain, .fused = false, .accuracy_level = 0});
    onnx_format::export_model(*exported, dir / "out.onnx");
  } catch (const Error& error) {
    return error.what();
  }
  try {
    expect_valid(dir / "out.onnx");
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  const auto again = onnx_format::import_model(dir / "out.onnx");
  const runtime::Interpreter interpreter(*again.graph);
  for (const auto& data : loaded.data_sets) {
    const runtime::NamedValues outputs = interpreter.run(data.inputs);
    for (const auto& [name, expected] : data.expected) {
      const std::string difference = compare(expected, outputs.at(name), recorded_precision(test.name));
      EXPECT_EQ(difference, "") << name;
    }
  }
  return "";
}

void run_all(const std::vector<BackendCase>& cases, double least_share) {
  size_t exported = 0;
  size_t ran = 0;
  for (const BackendCase& test : cases) {
    if (!reason_for_gap(test, operators_of(test)).empty()) continue;
    SCOPED_TRACE(test.name);
    ++ran;
    try {
      const std::string refusal = expect_same_after_export(test);
      if (refusal.empty())
        ++exported;
      else
        std::cout << test.name << ": " << refusal << '\n';
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  EXPECT_GE(static_cast<double>(exported), least_share * static_cast<double>(ran))
      << exported << " of " << ran;
}

TEST(ExportedCases, OfTheDistribution) {
  const std::vector<BackendCase> cases = read_case_folder(std::string(kDebianTestData) + "/node");
  if (cases.empty()) GTEST_SKIP() << "needs the package libonnx-testdata";
  run_all(cases, 0.95);
}

TEST(ExportedCases, OldVersionsOfTheDistribution) {
  for (const char* folder : {"simple", "pytorch-converted", "pytorch-operator"}) {
    const std::vector<BackendCase> cases = read_case_folder(std::string(kDebianTestData) + "/" + folder);
    if (cases.empty()) GTEST_SKIP() << "needs the package libonnx-testdata";
    run_all(cases, 0.9);
  }
}

TEST(ExportedCases, OfTheArchive) {
  QUERN_NEEDS_SHARED(kNodeArchive);
  run_all(read_case_archive(shared_path(kNodeArchive)), 0.9);
}

}  // namespace
}  // namespace quern::test
