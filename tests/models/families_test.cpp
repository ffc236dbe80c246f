// Tiny models of the families, as the public exporters write them (families/make_families.py), against what
// ONNX Runtime recorded of them.
#include <set>

#include "tests/models/family_records.h"
#include "tests/support/paths.h"

namespace quern::test {
namespace {

std::filesystem::path family(const std::string& name) {
  return source_path("tests/models/families") / name;
}

class DecoderFamilyTest : public testing::TestWithParam<Family> {};

TEST_P(DecoderFamilyTest, IsCanonicalAndDecodesAsRecorded) {
  const Family& traits = GetParam();
  const std::filesystem::path family_file = family(traits.name);
  const json record = record_of(family_file);
  const auto [graph, notes] = prepare(family_file);
  ASSERT_TRUE(passes::is_decoder(*graph)) << notes;
  expect_traits(*graph, traits);
  Session session(Program::compile(*graph), {.threads = 1});
  expect_decoding(session, record);
  expect_two_prompts(session, record);
}

// The graph as it came, with a left-padded batch of two and no past: its operators by themselves.
TEST_P(DecoderFamilyTest, RunsPlain) {
  const json record = record_of(family(GetParam().name));
  const json& padded = record["padded"];
  const onnx_format::ImportedModel imported =
      onnx_format::import_model(family(GetParam().name + std::string(".onnx")));
  const auto length = static_cast<int64_t>(padded["ids"][0].size());
  runtime::NamedValues inputs;
  const auto matrix = [&](const char* key) {
    std::vector<int64_t> values;
    for (const json& row : padded[key]) values.insert(values.end(), row.begin(), row.end());
    return Tensor::from<int64_t>({2, length}, values);
  };
  for (const Value* input : imported.graph->inputs()) {
    if (input->name() == "input_ids" || input->name() == "attention_mask") {
      inputs[input->name()] = matrix(input->name() == "input_ids" ? "ids" : "mask");
    } else if (input->name() == "position_ids") {
      Tensor positions = matrix("mask");
      for (int64_t b = 0; b < 2; ++b) {
        int64_t count = 0;
        for (int64_t i = 0; i < length; ++i) {
          count += positions.int_at(b * length + i);
          positions.set_int(b * length + i, std::max<int64_t>(0, count - 1));
        }
      }
      inputs[input->name()] = positions;
    } else {
      Shape shape;
      for (const Dim& dim : input->shape())
        shape.push_back(shape.empty() ? 2 : dim.is_constant() ? dim.constant() : 0);
      inputs[input->name()] = Tensor::zeros(input->dtype(), shape);
    }
  }
  const std::vector<float> got =
      runtime::Interpreter(*imported.graph).run(inputs).at("logits").dense().to_floats();
  const std::vector<float> wanted = floats(padded["logits"]);
  ASSERT_EQ(got.size(), wanted.size());
  const auto vocabulary = record["vocabulary"].get<size_t>();
  for (size_t b = 0; b < 2; ++b) {
    const std::vector<int64_t> mask = ints(padded["mask"][b]);
    for (size_t i = 0; i < mask.size(); ++i) {
      if (mask[i] == 0) continue;
      const size_t at = (b * mask.size() + i) * vocabulary;
      expect_near(std::span(got).subspan(at, vocabulary), std::span(wanted).subspan(at, vocabulary),
                  concat("row ", b, " token ", i));
    }
  }
}

std::string family_name(const testing::TestParamInfo<Family>& info) {
  return info.param.name;
}

const Family kDecoders[] = {
    {.name = "llama"},
    {.name = "llama3"},
    {.name = "mistral", .windows = {5, 5}},
    {.name = "qwen2"},
    {.name = "qwen3"},
    {.name = "gemma"},
    {.name = "gemma2", .windows = {5, 0}, .softcap = 5},
    {.name = "gemma3", .windows = {5, 0}},
    {.name = "phi"},
    {.name = "phi3"},
    {.name = "phi3_long"},
    {.name = "gpt2", .rotaries = 0},
    {.name = "gpt_neox"},
    {.name = "gptj", .interleaved = true},
    {.name = "opt", .rotaries = 0},
    {.name = "bloom", .rotaries = 0, .slopes = true},
    {.name = "mpt", .rotaries = 0, .slopes = true},
    {.name = "falcon"},
    {.name = "stablelm"},
    {.name = "olmo"},
    {.name = "olmo2"},
    {.name = "granite"},
    {.name = "smollm3", .rotaries = 2},
    {.name = "mixtral"},
    {.name = "qwen2_moe"},
    {.name = "qwen3_moe"},
    {.name = "gpt_oss", .windows = {5, 0}, .sinks = true},
};

INSTANTIATE_TEST_SUITE_P(Families, DecoderFamilyTest, testing::ValuesIn(kDecoders), family_name);

// Encoders stay graphs over batch and sequence; their attention, norms, products and activations are
// operators.
class EncoderFamilyTest : public testing::TestWithParam<const char*> {};

TEST_P(EncoderFamilyTest, IsFusedAndComputesAsRecorded) {
  const json record = record_of(family(GetParam()));
  const auto [graph, notes] = prepare(family(GetParam()));
  EXPECT_FALSE(passes::is_decoder(*graph));
  std::map<std::string, int> count;
  for (const Node* node : graph->nodes()) ++count[node->op()];
  EXPECT_EQ(count["Attention"], 2) << to_text(*graph);
  EXPECT_EQ(count["LayerNormalization"] + count["SkipLayerNormalization"], 5) << to_text(*graph);
  EXPECT_GE(count["Linear"], 2 * 6) << to_text(*graph);
  EXPECT_EQ(count["Gelu"], 2) << to_text(*graph);
  EXPECT_EQ(count["Softmax"], 0) << to_text(*graph);
  // What costs time must not be left to the reference.
  runtime::RunOptions options;
  options.on_kernel = [](const Node& node, std::string_view implementation) {
    const std::set<std::string> costly = {
        "Attention", "Linear", "LayerNormalization", "SkipLayerNormalization", "Gelu", "MatMul", "Gemm"};
    if (costly.contains(node.op())) {
      EXPECT_EQ(implementation, "cpu") << describe(node);
    }
  };
  expect_outputs(*graph, record, options);
}

INSTANTIATE_TEST_SUITE_P(Families, EncoderFamilyTest,
                         testing::Values("bert", "distilbert", "roberta", "minilm", "vit"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace quern::test
