// Tiny models as other exporters than optimum's write them (exporters/make_exporters.py): the same canonical
// decoder, and what ONNX Runtime recorded.
#include "tests/models/family_records.h"
#include "tests/support/paths.h"

namespace quern::test {
namespace {

// Prompts about as long as the length from which on other rotary frequencies serve.
void expect_beyond(Session& session, const json& record, float tolerance) {
  for (const json& prompt : record["beyond"]) {
    const std::vector<int64_t> ids = ints(prompt["ids"]);
    Sequence sequence = session.new_sequence();
    const SequenceStep step{.sequence = &sequence, .tokens = ids, .logits = LogitsFor::All};
    session.run({&step, 1});
    std::vector<float> all;
    for (int64_t i = 0; i < session.logit_rows(0); ++i)
      all.insert(all.end(), session.logits(0, i).begin(), session.logits(0, i).end());
    expect_near(all, floats(prompt["logits"]), concat(ids.size(), " tokens"), tolerance);
  }
}

class ExporterTest : public testing::TestWithParam<Family> {};

TEST_P(ExporterTest, IsCanonicalAndDecodesAsRecorded) {
  const Family& family = GetParam();
  const std::filesystem::path file = source_path("tests/models/exporters") / family.name;
  const json record = record_of(file);
  const auto [graph, notes] = prepare(file);
  ASSERT_TRUE(passes::is_decoder(*graph)) << notes;
  expect_traits(*graph, family);
  Session session(Program::compile(*graph), {.threads = 1});
  // Products with codes add up in another order than ONNX Runtime's.
  const std::string name = family.name;
  const float tolerance = name.ends_with("int4") || name.ends_with("qdq4") ? 2e-4F : 5e-5F;
  expect_decoding(session, record, tolerance);
  if (record.contains("padded")) expect_two_prompts(session, record);
  if (record.contains("beyond")) expect_beyond(session, record, tolerance);
}

class ExporterEncoderTest : public testing::TestWithParam<const char*> {};

TEST_P(ExporterEncoderTest, IsFusedAndComputesAsRecorded) {
  const std::filesystem::path file = source_path("tests/models/exporters") / GetParam();
  const auto [graph, notes] = prepare(file);
  std::map<std::string, int> count;
  for (const Node* node : graph->nodes()) ++count[node->op()];
  EXPECT_EQ(count["Attention"], 2) << to_text(*graph);
  EXPECT_EQ(count["LayerNormalization"] + count["SkipLayerNormalization"] + count["EmbedLayerNormalization"],
            5)
      << to_text(*graph);
  EXPECT_EQ(count["Gelu"] + count["BiasGelu"], 2) << to_text(*graph);
  EXPECT_EQ(count["Softmax"], 0) << to_text(*graph);
  expect_outputs(*graph, record_of(file));
}

const Family kDecoders[] = {
    {.name = "genai_llama_fp32"},
    {.name = "genai_llama_int4"},
    {.name = "genai_qwen2_fp32"},
    {.name = "genai_qwen3_int4"},
    {.name = "genai_gemma2_fp32", .windows = {0, 5}, .softcap = 5},
    {.name = "genai_gpt_oss_fp32", .windows = {5, 0}, .sinks = true},
    {.name = "genai_gpt_oss_int4", .windows = {5, 0}, .sinks = true},
    {.name = "dynamo_llama"},
    {.name = "dynamo_phi3"},
    {.name = "ort_gpt2", .rotaries = 0},
    {.name = "ort_llama"},
    {.name = "genai_llama_qdq4"},
    {.name = "genai_gemma_fp32"},
    {.name = "genai_gemma3_fp32", .windows = {5, 5, 5, 5, 5, 0}, .rotaries = 12},
    {.name = "genai_phi_fp32"},
    {.name = "genai_phi3_fp32"},
    {.name = "genai_phi3_long_fp32"},
    {.name = "genai_qwen3_fp32"},
    {.name = "dynamo_gemma3", .windows = {5, 0}},
    {.name = "dynamo_gpt2", .rotaries = 0},
    {.name = "dynamo_qwen3"},
    {.name = "script_llama_14"},
    {.name = "script_gpt2_13", .rotaries = 0},
    {.name = "script_gemma3_17", .windows = {5, 0}},
};

INSTANTIATE_TEST_SUITE_P(Exporters, ExporterEncoderTest,
                         testing::Values("ort_bert", "ort_distilbert", "ort_roberta", "ort_minilm",
                                         "ort_vit"),
                         [](const auto& info) { return std::string(info.param); });

INSTANTIATE_TEST_SUITE_P(Exporters, ExporterTest, testing::ValuesIn(kDecoders),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace quern::test
