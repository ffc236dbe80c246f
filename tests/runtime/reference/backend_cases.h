// The cases of ONNX's backend suite: a model, and inputs with the outputs that they must give.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "runtime/interpreter.h"

namespace quern::test {

struct BackendCase {
  struct DataSet {
    std::vector<std::string> inputs;  // serialized messages, in the order of the model's inputs
    std::vector<std::string> outputs;
  };
  std::string name;
  std::string model;  // serialized
  std::vector<DataSet> data_sets;
};

// Of a folder that has one folder per case. Empty where it does not exist.
std::vector<BackendCase> read_case_folder(const std::filesystem::path& folder);
// Of an archive with the same layout below `node/`.
std::vector<BackendCase> read_case_archive(const std::filesystem::path& path);

inline constexpr const char* kDebianTestData = "/usr/share/libonnx-testdata/data";
inline constexpr const char* kNodeArchive = "onnx-node-tests/onnx-node-tests-1.22.tar.gz";  // in shared/

// A case with its data read.
struct LoadedCase {
  struct DataSet {
    runtime::NamedValues inputs;
    runtime::NamedValues expected;
  };
  std::unique_ptr<Graph> graph;
  std::vector<DataSet> data_sets;
};
LoadedCase load(const BackendCase& test);

// The operators that the model names, with their domains where these are not ai.onnx; before functions are
// inlined.
std::vector<std::string> operators_of(const BackendCase& test);

// Whether an input or output is an optional of a sequence.
bool has_optional_sequence(const BackendCase& test);

// What differs, or nothing. Floats: NaN equals NaN, |difference| <= absolute + relative * |expected|, with
// bounds by dtype, the relative one not below `recorded`; all else exactly.
std::string compare(const runtime::RuntimeValue& expected, const runtime::RuntimeValue& actual,
                    double recorded = 0);

struct CaseResult {
  enum class Status { Passed, Failed, Unsupported } status = Status::Passed;
  std::string message;
};
// Imports, runs on the reference kernels and on those that are preferred, compares; then checks shape
// inference against the outputs (see inference_check.h).
CaseResult run_case(const BackendCase& test);

}  // namespace quern::test
