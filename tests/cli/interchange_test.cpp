// Models that quern exports for other runtimes, against what ONNX Runtime computed with the same files
// (interchange/record.py), and read back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "formats/artifact/artifact.h"
#include "formats/file/checksum.h"
#include "formats/onnx/import.h"
#include "ir/schema.h"
#include "passes/canonicalize/to_decoder.h"
#include "passes/compile.h"
#include "runtime/interpreter.h"
#include "runtime/quern.h"
#include "tests/cli/quern_binary.h"
#include "tests/support/temp_dir.h"

namespace quern::test {
namespace {

using nlohmann::json;
using runtime::LogitsFor;
using runtime::Program;
using runtime::Sequence;
using runtime::SequenceStep;
using runtime::Session;

const json& records() {
  static const json all = [] {
    std::ifstream file(source_path("tests/cli/interchange/records.json"));
    return json::parse(file);
  }();
  return all;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::string digest_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  Sha256 hash;
  hash.update(std::as_bytes(std::span(bytes)));
  return to_hex(hash.finish());
}

// The largest difference, relative to the largest of what is expected.
float difference(const std::vector<float>& got, const std::vector<float>& wanted) {
  EXPECT_EQ(got.size(), wanted.size());
  float scale = 0, most = 0;
  for (const float x : wanted) scale = std::max(scale, std::fabs(x));
  for (size_t i = 0; i < std::min(got.size(), wanted.size()); ++i)
    most = std::max(most, std::fabs(got[i] - wanted[i]));
  return most / scale;
}

// What the record has of a decoder: logits of the last tokens of two sequences, each step after the other.
std::vector<std::vector<float>> decode(Session& session, const json& record) {
  const auto prompts = record["prompt"].get<std::vector<std::vector<int64_t>>>();
  const size_t behind = record["steps"].get<size_t>(), every = record.value("every", size_t{1});
  std::vector<Sequence> sequences;
  for (size_t b = 0; b < prompts.size(); ++b) sequences.push_back(session.new_sequence());
  std::vector<std::vector<float>> result;
  const size_t length = prompts[0].size();
  for (size_t from = 0, to = length - behind; from < length; from = to, ++to) {
    std::vector<SequenceStep> steps;
    for (size_t b = 0; b < prompts.size(); ++b) {
      steps.push_back({.sequence = &sequences[b],
                       .tokens = std::span(prompts[b]).subspan(from, to - from),
                       .logits = LogitsFor::Last});
    }
    session.run(steps);
    std::vector<float>& all = result.emplace_back();
    for (size_t b = 0; b < prompts.size(); ++b) {
      const std::span<const float> logits = session.logits(b);
      for (size_t i = 0; i < logits.size(); i += every) all.push_back(logits[i]);
    }
  }
  return result;
}

std::vector<std::vector<float>> encode(const Graph& graph, const json& record) {
  runtime::NamedValues inputs;
  for (const auto& [name, input] : record["inputs"].items()) {
    const auto values = input["values"].get<std::vector<float>>();
    const Tensor tensor = Tensor::from<float>(input["shape"].get<Shape>(), values);
    inputs[name] = input["type"] == "f32" ? tensor : tensor.cast(DType::I64);
  }
  const runtime::NamedValues outputs = runtime::Interpreter(graph).run(inputs);
  std::vector<std::vector<float>> result;
  for (const auto& [name, values] : record["outputs"].items())
    result.push_back(outputs.at(name).dense().to_floats());
  return result;
}

std::vector<std::vector<float>> recorded(const json& record) {
  if (record.contains("logits")) return record["logits"].get<std::vector<std::vector<float>>>();
  std::vector<std::vector<float>> result;
  for (const auto& [name, values] : record["outputs"].items())
    result.push_back(values.get<std::vector<float>>());
  return result;
}

std::vector<std::vector<float>> computed(Graph& graph, const json& record) {
  if (!record.contains("logits")) return encode(graph, record);
  Session session(Program::compile(graph), {.threads = 1});
  return decode(session, record);
}

float largest_difference(const std::vector<std::vector<float>>& got,
                         const std::vector<std::vector<float>>& wanted) {
  EXPECT_EQ(got.size(), wanted.size());
  float most = 0;
  for (size_t i = 0; i < std::min(got.size(), wanted.size()); ++i)
    most = std::max(most, difference(got[i], wanted[i]));
  return most;
}

// The weights that are held in codes.
int64_t coded_weights(const Graph& graph) {
  int64_t count = 0;
  for (const Value* value : graph.constants()) {
    const DType dtype = value->tensor() ? value->dtype() : DType::Undefined;
    // Of ConvInteger, QLinearConv, QLinearMatMul and QGemm, which stay what they are.
    const bool plain = value->shape().size() >= 2 && (dtype == DType::U8 || dtype == DType::I8);
    count +=
        plain || value->quantized() || (value->packed() && value->packed()->spec().is_quantized()) ? 1 : 0;
  }
  return count;
}

bool has_integer_convolutions(const Graph& graph) {
  const auto& nodes = graph.nodes();
  return std::any_of(nodes.begin(), nodes.end(),
                     [](const Node* node) { return node->is("ConvInteger") || node->is("QLinearConv"); });
}

// What the other runtime's arithmetic explains. Integer weights meet 16-bit activations here and floats
// there; in the style qoperator there are 8-bit activations, with one scale for all tokens where the artifact
// does not say otherwise.
float tolerance(const json& record) {
  const std::string style = record["export"], weights = record["convert"];
  const bool exact = weights.find("fp32") != std::string::npos;
  // Where sums that differ in their last bits lie on either side of a half, a code is another one.
  if (weights.find("--activations static") != std::string::npos) return 2e-2F;
  if (style.find("qoperator") != std::string::npos)
    return weights.find("--activations dynamic") != std::string::npos ? 2e-2F : 6e-2F;
  return exact ? 5e-5F : 1e-3F;
}

class InterchangeTest : public testing::TestWithParam<size_t> {};

TEST_P(InterchangeTest, ComputesWhatTheOtherRuntimeDoes) {
  const json& record = records().at(GetParam());
  SCOPED_TRACE(concat(record["model"], " ", record["convert"], " ", record["export"]));
  const TempDir folder = TempDir::in_memory();
  std::vector<std::string> convert = {"convert", source_path(record["model"]).string(), "-o",
                                      folder / "a.quern", "--quiet"};
  for (const std::string& word : words_of(record["convert"]))
    convert.push_back(word.starts_with("tests/") ? source_path(word).string() : word);
  const ProgramResult converted = quern(convert);
  ASSERT_EQ(converted.status, 0) << converted.err;
  std::vector<std::string> exporting = {"export", folder / "a.quern", "-o", folder / "a.onnx", "--quiet"};
  for (const std::string& word : words_of(record["export"])) exporting.push_back(word);
  const ProgramResult exported = quern(exporting);
  ASSERT_EQ(exported.status, 0) << exported.err;
  EXPECT_EQ(digest_of(folder / "a.onnx"), record["sha256"])
      << "the exported file is another one than was recorded: run tests/cli/interchange/record.py";

  artifact::Artifact file = artifact::Artifact::open(folder / "a.quern");
  const std::shared_ptr<Graph> graph = file.take_graph();
  const std::vector<std::vector<float>> own = computed(*graph, record);
  EXPECT_LE(largest_difference(own, recorded(record)), tolerance(record));

  onnx_format::ImportedModel imported = onnx_format::import_model(folder / "a.onnx");
  passes::prepare_for_execution(*imported.graph);
  ASSERT_EQ(passes::is_decoder(*imported.graph), record.contains("logits")) << to_text(*imported.graph);
  const bool kept = record["export"].get<std::string>().find("plain") == std::string::npos;
  if (kept) {
    EXPECT_EQ(coded_weights(*imported.graph), coded_weights(*graph)) << to_text(*imported.graph);
  }
  // The numbers of the weights are the same; blocks of another size are rounded by another scale. Integer
  // convolutions keep their codes of activations.
  const std::vector<std::vector<float>> again = computed(*imported.graph, record);
  if (has_integer_convolutions(*imported.graph)) {
    EXPECT_LE(largest_difference(again, recorded(record)), 2e-2F);
  } else {
    EXPECT_LE(largest_difference(again, own), 2e-4F);
  }
}

std::string case_name(const testing::TestParamInfo<size_t>& info) {
  const json& record = records().at(info.param);
  std::string name = std::filesystem::path(record["model"].get<std::string>()).stem().string();
  if (name == "model") name = "storyteller";
  for (const char* key : {"convert", "export"}) name += " " + record[key].get<std::string>();
  std::string clean;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)))
      clean += c;
    else if (!clean.empty() && clean.back() != '_')
      clean += '_';
  }
  return clean;
}

INSTANTIATE_TEST_SUITE_P(Styles, InterchangeTest, testing::Range(size_t{0}, records().size()), case_name);

// What a style has no form for is refused by the weight's name.
TEST(Interchange, RefusesWhatTheTargetCannotRun) {
  const TempDir folder = TempDir::in_memory();
  const std::string llama = source_path("tests/models/families/llama.onnx").string();
  const auto refused = [&](const char* weights, const char* style, const std::vector<std::string>& parts) {
    ASSERT_EQ(quern({"convert", llama, "-o", folder / "a.quern", "--quiet", "--weights", weights}).status, 0);
    expect_refused(quern({"export", folder / "a.quern", "-o", folder / "a.onnx", "--style", style}), 4,
                   parts);
    EXPECT_FALSE(std::filesystem::exists(folder / "a.onnx"));
  };
  refused("int4", "qoperator",
          {"model.embed_tokens.weight", "int4 symmetric per group of 32", "--style", "qdq"});
  refused("fp8-e4m3", "nbits", {"weight '", "f8e4m3", "MatMulNBits"});
}

}  // namespace
}  // namespace quern::test
