// Models that ONNX Runtime's quantizers wrote (quantized/make_quantized.py), against what ONNX Runtime
// recorded of them: their weights come in as codes, and stay so.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "formats/onnx/import.h"
#include "ir/schema.h"
#include "passes/canonicalize/to_decoder.h"
#include "passes/compile.h"
#include "runtime/interpreter.h"
#include "runtime/quern.h"
#include "tests/support/paths.h"

namespace quern::test {
namespace {

using nlohmann::json;
using runtime::LogitsFor;
using runtime::NamedValues;
using runtime::Program;
using runtime::Sequence;
using runtime::SequenceStep;
using runtime::Session;

struct Model {
  const char* name;
  bool decoder;
  int64_t coded;    // weights in codes
  float tolerance;  // relative to the largest output
};

void PrintTo(const Model& model, std::ostream* out) {
  *out << model.name;
}

json record_of(const std::string& name) {
  std::ifstream file(source_path("tests/models/quantized/" + name + ".json"));
  return json::parse(file);
}

Tensor tensor_of(const json& entry) {
  const auto shape = entry["shape"].get<Shape>();
  if (entry["type"] == "f32") return Tensor::from<float>(shape, entry["data"].get<std::vector<float>>());
  return Tensor::from<int64_t>(shape, entry["data"].get<std::vector<int64_t>>());
}

NamedValues inputs_of(const json& record) {
  NamedValues inputs;
  for (const auto& [name, entry] : record["inputs"].items()) inputs[name] = tensor_of(entry);
  return inputs;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& wanted, float tolerance) {
  ASSERT_EQ(got.size(), wanted.size());
  float scale = 0, most = 0;
  for (const float x : wanted) scale = std::max(scale, std::fabs(x));
  for (size_t i = 0; i < got.size(); ++i) most = std::max(most, std::fabs(got[i] - wanted[i]));
  EXPECT_LE(most / scale, tolerance);
}

int64_t coded_weights(const Graph& graph) {
  int64_t count = 0;
  for (const Value* value : graph.constants()) {
    const Tensor* tensor = value->tensor();
    const bool codes = tensor && tensor->rank() > 1 && bit_width(tensor->dtype()) <= 8;
    count += codes || value->quantized() ? 1 : 0;
  }
  return count;
}

std::vector<float> decode(const Graph& graph, const json& record) {
  Session session(Program::compile(graph), {.threads = 1});
  const Tensor ids = tensor_of(record["inputs"]["input_ids"]);
  std::vector<float> all;
  for (int64_t b = 0; b < ids.dim(0); ++b) {
    Sequence sequence = session.new_sequence();
    const auto tokens =
        ids.data<int64_t>().subspan(static_cast<size_t>(b * ids.dim(1)), static_cast<size_t>(ids.dim(1)));
    const SequenceStep step{.sequence = &sequence, .tokens = tokens, .logits = LogitsFor::All};
    session.run({&step, 1});
    for (int64_t i = 0; i < session.logit_rows(0); ++i)
      all.insert(all.end(), session.logits(0, i).begin(), session.logits(0, i).end());
  }
  return all;
}

class QuantizedModelTest : public testing::TestWithParam<Model> {};

// Operator by operator, as the file has them.
TEST_P(QuantizedModelTest, ComputesAsWritten) {
  const json record = record_of(GetParam().name);
  const auto imported =
      onnx_format::import_model(source_path(concat("tests/models/quantized/", GetParam().name, ".onnx")));
  const NamedValues outputs = runtime::Interpreter(*imported.graph).run(inputs_of(record));
  for (const auto& [name, entry] : record["outputs"].items()) {
    expect_near(outputs.at(name).dense().to_floats(), tensor_of(entry).to_floats(), GetParam().tolerance);
  }
}

TEST_P(QuantizedModelTest, IsAdoptedAndComputesAsRecorded) {
  const json record = record_of(GetParam().name);
  const auto imported =
      onnx_format::import_model(source_path(concat("tests/models/quantized/", GetParam().name, ".onnx")));
  const Graph& graph = *imported.graph;
  passes::prepare_for_execution(*imported.graph);
  EXPECT_EQ(coded_weights(graph), GetParam().coded) << to_text(graph);
  ASSERT_EQ(passes::is_decoder(graph), GetParam().decoder) << to_text(graph);
  if (GetParam().decoder) {
    expect_near(decode(graph, record), tensor_of(record["outputs"]["logits"]).to_floats(),
                GetParam().tolerance);
    return;
  }
  const NamedValues outputs = runtime::Interpreter(graph).run(inputs_of(record));
  for (const auto& [name, entry] : record["outputs"].items()) {
    expect_near(outputs.at(name).dense().to_floats(), tensor_of(entry).to_floats(), GetParam().tolerance);
  }
}

// Activations in 8 bits there, sums in another order or more bits here: a code here and there is another one.
constexpr float kCodes = 5e-2F;

const Model kModels[] = {
    {"llama_dynamic_int8", true, 16, kCodes},     {"llama_dynamic_uint8_channel", true, 16, kCodes},
    {"llama_static_qdq", true, 15, 1.5e-1F},      {"llama_nbits4", true, 16, 1e-3F},
    {"llama_nbits4_asymmetric", true, 16, 1e-3F}, {"llama_nbits8", true, 15, 1e-3F},
    {"llama_nbits4_qdq", true, 15, 1e-3F},        {"llama_hqq", true, 0, 1e-3F},
    {"product_k_quant", false, 1, 1e-3F},         {"bert_dynamic", false, 17, kCodes},
    {"bert_static_qdq", false, 17, kCodes},       {"bert_static_qdq_channel", false, 17, kCodes},
    {"bert_static_qoperator", false, 17, kCodes}, {"cnn_dynamic", false, 4, kCodes},
    {"cnn_static_qdq", false, 4, kCodes},         {"cnn_static_qdq_channel", false, 4, kCodes},
    {"cnn_static_qoperator", false, 4, kCodes},   {"cnn_static_qoperator_channel", false, 4, kCodes},
};

INSTANTIATE_TEST_SUITE_P(Quantizers, QuantizedModelTest, testing::ValuesIn(kModels),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace quern::test
