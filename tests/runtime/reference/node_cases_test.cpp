// Every node case of ONNX's backend suite, from the distribution's package and from the newer archive.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/runtime/reference/backend_cases.h"
#include "tests/runtime/reference/expected_gaps.h"
#include "tests/support/paths.h"

namespace quern::test {
namespace {

// QUERN_NODE_CASES=substring picks cases by name, for debugging.
bool is_picked(const BackendCase& test) {
  const char* pick = std::getenv("QUERN_NODE_CASES");
  return pick == nullptr || test.name.find(pick) != std::string::npos;
}

void run_all(const std::vector<BackendCase>& cases, double least_share) {
  size_t ran = 0;
  size_t passed = 0;
  for (const BackendCase& test : cases) {
    if (!is_picked(test)) continue;
    ++ran;
    const CaseResult result = run_case(test);
    if (result.status == CaseResult::Status::Passed) ++passed;
    const std::string reason = reason_for_gap(test, operators_of(test));
    if (reason.empty()) {
      EXPECT_EQ(result.status, CaseResult::Status::Passed) << test.name << ": " << result.message;
    } else {
      EXPECT_NE(result.status, CaseResult::Status::Passed)
          << test.name << " passes, but is listed as a gap: " << reason;
    }
  }
  ASSERT_GT(ran, 0u);
  EXPECT_GE(static_cast<double>(passed), least_share * static_cast<double>(ran)) << passed << " of " << ran;
  testing::Test::RecordProperty("passed", static_cast<int>(passed));
}

TEST(NodeCases, OfTheDistribution) {
  const std::vector<BackendCase> cases = read_case_folder(std::string(kDebianTestData) + "/node");
  if (cases.empty()) GTEST_SKIP() << "needs the package libonnx-testdata";
  run_all(cases, 0.95);
}

TEST(NodeCases, OfTheArchive) {
  QUERN_NEEDS_SHARED(kNodeArchive);
  run_all(read_case_archive(shared_path(kNodeArchive)), 0.95);
}

// Small models of the same suite: of every kind of graph, and converted from PyTorch with operator sets from
// 6 on.
class WholeModels : public testing::TestWithParam<const char*> {};

TEST_P(WholeModels, OfTheDistribution) {
  const std::vector<BackendCase> cases = read_case_folder(std::string(kDebianTestData) + "/" + GetParam());
  if (cases.empty()) GTEST_SKIP() << "needs the package libonnx-testdata";
  run_all(cases, 0.9);  // two are of training
}

INSTANTIATE_TEST_SUITE_P(Folders, WholeModels,
                         testing::Values("simple", "pytorch-converted", "pytorch-operator"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace quern::test
