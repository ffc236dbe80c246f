#include "formats/artifact/generation_config.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace quern::artifact {
namespace {

TEST(GenerationConfig, SurvivesJson) {
  const GenerationConfig config{.context_length = 2048,
                                .eos_ids = {2, 32000},
                                .bos_id = 1,
                                .pad_id = 0,
                                .sample = true,
                                .temperature = 0.5,
                                .top_k = 40,
                                .top_p = 0.25,
                                .min_p = 0.125,
                                .repetition_penalty = 1.5};
  EXPECT_EQ(GenerationConfig::parse(config.to_json()), config);
  EXPECT_EQ((GenerationConfig{.context_length = 9, .eos_ids = {2}}.to_json()),
            "{\n  \"context_length\": 9,\n  \"eos_ids\": [\n    2\n  ]\n}\n");
  EXPECT_EQ(GenerationConfig::parse("{\"later\": 1}"), GenerationConfig{});
  EXPECT_TRUE(GenerationConfig{}.empty());
  EXPECT_EQ(GenerationConfig::parse(GenerationConfig{}.to_json()), GenerationConfig{});
}

TEST(GenerationConfig, RefusesDamage) {
  for (const char* bad : {"{", "[]", "", "{\"eos_ids\": 1}"}) {
    EXPECT_QUERN_ERROR(GenerationConfig::parse(bad), ErrorCode::Corrupt, "generation configuration");
  }
  EXPECT_QUERN_ERROR(GenerationConfig::parse("{\"eos_ids\": [\"two\"]}"), ErrorCode::Corrupt, "eos_ids");
  EXPECT_QUERN_ERROR(GenerationConfig::parse("{\"bos_id\": -1}"), ErrorCode::Corrupt, "bos_id");
  EXPECT_QUERN_ERROR(GenerationConfig::parse("{\"top_k\": 1e300}"), ErrorCode::Corrupt, "top_k");
  EXPECT_QUERN_ERROR(GenerationConfig::parse("{\"context_length\": 18446744073709551615}"),
                     ErrorCode::Corrupt, "context_length");
}

class FilesOfOtherTools : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) { test::write_text(folder_ / name, text); }
  GenerationConfig read() const { return read_generation_config(folder_.path()); }
  test::TempDir folder_;
};

TEST_F(FilesOfOtherTools, NothingIsEmpty) {
  EXPECT_TRUE(read().empty());
}

TEST_F(FilesOfOtherTools, ReadsTransformers) {
  write("config.json", R"({"eos_token_id": 2, "bos_token_id": 1, "max_position_embeddings": 4096})");
  EXPECT_EQ(read(), (GenerationConfig{.context_length = 4096, .eos_ids = {2}, .bos_id = 1}));
  write("generation_config.json",
        R"({"eos_token_id": [2, 5], "do_sample": true, "temperature": 0.5, "top_k": 7})");
  EXPECT_EQ(read(), (GenerationConfig{.context_length = 4096,
                                      .eos_ids = {2, 5},
                                      .bos_id = 1,
                                      .sample = true,
                                      .temperature = 0.5,
                                      .top_k = 7}));
}

TEST_F(FilesOfOtherTools, ReadsTheDecoderOfAMultiModalModel) {
  write("config.json", R"({"text_config": {"max_position_embeddings": 77}})");
  EXPECT_EQ(read(), (GenerationConfig{.context_length = 77}));
}

TEST_F(FilesOfOtherTools, GenAiGoesFirst) {
  write("genai_config.json",
        R"({"model": {"context_length": 512, "eos_token_id": [7]}, "search": {"top_p": 0.5}})");
  write("config.json", R"({"eos_token_id": 2, "max_position_embeddings": 4096})");
  EXPECT_EQ(read(), (GenerationConfig{.context_length = 512, .eos_ids = {7}, .top_p = 0.5}));
}

TEST_F(FilesOfOtherTools, OddValuesArePassedOver) {
  write(
      "config.json",
      R"({"eos_token_id": null, "n_positions": "many", "bos_token_id": -1, "text_config": [1], "n_ctx": 1.5})");
  EXPECT_TRUE(read().empty());
}

TEST_F(FilesOfOtherTools, AFileThatIsNoJsonIsNamed) {
  write("config.json", "eos = 2");
  EXPECT_QUERN_ERROR(read(), ErrorCode::Corrupt, "config.json", "JSON");
}

}  // namespace
}  // namespace quern::artifact
