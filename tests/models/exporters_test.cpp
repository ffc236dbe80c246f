// Tiny models as other exporters than optimum's write them (exporters/make_exporters.py): the same canonical
// decoder, and what ONNX Runtime recorded.
#include "tests/models/family_records.h"
#include "tests/support/paths.h"

namespace quern::test {
namespace {

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
  expect_decoding(session, record, std::string(family.name).ends_with("int4") ? 2e-4F : 5e-5F);
  if (record.contains("padded")) expect_two_prompts(session, record);
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
};

INSTANTIATE_TEST_SUITE_P(Exporters, ExporterTest, testing::ValuesIn(kDecoders),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace quern::test
