// Encoders and encoder-decoders as exporters write them (plain/make_plain.py): they run as graphs, as they
// came and with all passes, and compute what ONNX Runtime recorded.
#include "tests/models/family_records.h"
#include "tests/support/paths.h"

namespace quern::test {
namespace {

Tensor tensor_of(const json& given) {
  const Tensor numbers = Tensor::from<float>(given["shape"].get<Shape>(), floats(given["data"]));
  const std::map<std::string, DType> types = {
      {"float32", DType::F32}, {"int64", DType::I64}, {"int32", DType::I32}, {"bool", DType::Bool}};
  return numbers.cast(types.at(given["dtype"].get<std::string>()));
}

void expect_calls(const Graph& graph, const json& record) {
  for (size_t i = 0; i < record["calls"].size(); ++i) {
    const json& call = record["calls"][i];
    runtime::NamedValues inputs;
    for (const auto& [name, input] : call["inputs"].items()) inputs[name] = tensor_of(input);
    const runtime::NamedValues outputs = runtime::Interpreter(graph).run(inputs);
    for (const auto& [name, output] : call["outputs"].items()) {
      const Tensor got = outputs.at(name).dense();
      EXPECT_EQ(got.shape(), output["shape"].get<Shape>()) << name;
      expect_near(got.to_floats(), floats(output["data"]), concat("call ", i, ", ", name));
    }
  }
}

class PlainModelTest : public testing::TestWithParam<const char*> {};

TEST_P(PlainModelTest, ComputesAsRecorded) {
  const std::filesystem::path file = source_path("tests/models/plain") / GetParam();
  const json record = record_of(file);
  ASSERT_FALSE(record["calls"].empty());
  const onnx_format::ImportedModel imported = onnx_format::import_model(file.string() + ".onnx");
  expect_calls(*imported.graph, record);
}

TEST_P(PlainModelTest, ComputesTheSameAfterAllPasses) {
  const std::filesystem::path file = source_path("tests/models/plain") / GetParam();
  const auto [graph, notes] = prepare(file);
  EXPECT_FALSE(passes::is_decoder(*graph));
  std::map<std::string, int> count;
  for (const Graph* each : passes::all_graphs(*graph)) {
    for (const Node* node : each->nodes()) ++count[node->op()];
  }
  EXPECT_GT(count["Attention"], 0) << to_text(*graph);
  EXPECT_GT(count["Linear"], 0) << to_text(*graph);
  EXPECT_EQ(count["Softmax"], 0) << to_text(*graph);
  expect_calls(*graph, record_of(file));
}

INSTANTIATE_TEST_SUITE_P(Plain, PlainModelTest,
                         testing::Values("deberta", "deberta_v2", "albert", "mpnet", "clip", "t5_encoder",
                                         "t5_decoder", "t5_first", "t5_next", "bart_encoder", "bart_decoder",
                                         "marian_encoder", "marian_decoder", "whisper_encoder",
                                         "whisper_decoder"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace quern::test
