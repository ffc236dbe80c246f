// Operators of com.microsoft against what ONNX Runtime gave (fixtures/make_microsoft_cases.py).
#include <gtest/gtest.h>

#include "tests/runtime/reference/backend_cases.h"
#include "tests/support/paths.h"

namespace quern::test {
namespace {

TEST(MicrosoftCases, GiveWhatOnnxRuntimeGives) {
  const std::vector<BackendCase> cases =
      read_case_archive(source_path("tests/runtime/reference/fixtures/microsoft_cases.tar.gz"));
  ASSERT_GT(cases.size(), 100u);
  for (const BackendCase& test : cases) {
    const CaseResult result = run_case(test);
    EXPECT_EQ(result.status, CaseResult::Status::Passed) << test.name << ": " << result.message;
  }
}

// Halves and saturation, to the bit (fixtures/make_rounding_cases.py).
TEST(RoundingCases, GiveTheCodesThatOnnxRuntimeGives) {
  const std::vector<BackendCase> cases =
      read_case_archive(source_path("tests/runtime/reference/fixtures/rounding_cases.tar.gz"));
  ASSERT_GT(cases.size(), 30u);
  for (const BackendCase& test : cases) {
    const CaseResult result = run_case(test);
    EXPECT_EQ(result.status, CaseResult::Status::Passed) << test.name << ": " << result.message;
  }
}

}  // namespace
}  // namespace quern::test
