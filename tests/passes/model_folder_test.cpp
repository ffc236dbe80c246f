#include "passes/model_folder.h"

#include <gtest/gtest.h>

#include "ir/rewriter.h"
#include "ir/schema.h"
#include "passes/synth_graphs.h"
#include "tests/support/expect_error.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace quern::test {
namespace {

using namespace quern::passes;
namespace fs = std::filesystem;

DecoderShape shape_with(int64_t vocabulary, int64_t context) {
  return {.layers = 1,
          .width = 16,
          .mlp_width = 16,
          .heads = 2,
          .kv_heads = 1,
          .head_size = 8,
          .vocabulary = vocabulary,
          .tied = true,
          .context = context};
}

class ModelFolderTest : public testing::Test {
 protected:
  void add_tokenizer(const fs::path& to) {
    fs::copy_file(source_path("examples/storyteller/tokenizer.json"), to);
  }
  ModelFolder read() const { return read_model_folder(folder_ / "model.onnx"); }
  TempDir folder_;
};

TEST_F(ModelFolderTest, AModelAloneHasNothing) {
  const ModelFolder folder = read();
  EXPECT_FALSE(folder.tokenizer);
  EXPECT_TRUE(folder.attachments().empty());
}

TEST_F(ModelFolderTest, AllOfItBecomesAttachmentsAndComesBack) {
  add_tokenizer(folder_ / "tokenizer.json");
  write_text(folder_ / "config.json", R"({"max_position_embeddings": 99})");
  write_text(folder_ / "tokenizer_config.json", R"({"chat_template": "{{ messages }}", "bos_token": "<s>"})");
  const ModelFolder folder = read();
  EXPECT_EQ(folder.tokenizer->origin, folder_ / "tokenizer.json");
  EXPECT_EQ(folder.generation.context_length, 99);
  EXPECT_EQ(folder.generation.eos_ids, std::vector<int64_t>{0}) << "the tokenizer's <|endoftext|>";
  EXPECT_EQ(folder.chat.templates.at("default"), "{{ messages }}");
  EXPECT_EQ(folder.chat.special_tokens.at("bos_token"), "<s>");

  {
    artifact::Writer writer(folder_ / "m.quern");
    writer.write_graph(*canonical_decoder(shape_with(4096, 99)));
    for (const auto& [name, bytes] : folder.attachments()) writer.add_attachment(name, bytes);
    writer.finish();
  }
  const ModelFolder carried = read_model_folder(artifact::Artifact::open(folder_ / "m.quern"));
  EXPECT_EQ(carried.attachments(), folder.attachments());
  EXPECT_EQ(carried.tokenizer->origin, "tokenizer.json in the artifact");
  EXPECT_EQ(find_tokenizer(folder_ / "m.quern").tokenizer.vocab_size(), 4096);
}

TEST_F(ModelFolderTest, TheFolderAboveOneCalledOnnxCounts) {
  fs::create_directory(folder_ / "onnx");
  add_tokenizer(folder_ / "tokenizer.json");
  EXPECT_TRUE(read_model_folder(folder_ / "onnx" / "model.onnx").tokenizer.has_value());
  fs::create_directory(folder_ / "other");
  EXPECT_FALSE(read_model_folder(folder_ / "other" / "model.onnx").tokenizer.has_value());
}

TEST_F(ModelFolderTest, AChatTemplateOfItsOwnGoesBeforeTheConfiguration) {
  write_text(
      folder_ / "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool", "template": "T"}, {"name": "default", "template": "D"}]})");
  EXPECT_EQ(read().chat.templates.at("default"), "D");
  const auto attachments = read().attachments();
  EXPECT_EQ(attachments.at("chat_template.jinja"), "D");
  EXPECT_EQ(attachments.at("chat_template.tool.jinja"), "T");
  write_text(folder_ / "chat_template.jinja", "J");
  EXPECT_EQ(read().chat.templates.at("default"), "J");
}

TEST_F(ModelFolderTest, FindsATokenizerByWhateverHasOne) {
  add_tokenizer(folder_ / "tokenizer.json");
  for (const fs::path& path : {folder_ / "tokenizer.json", folder_ / "model.onnx", folder_.path()}) {
    EXPECT_EQ(find_tokenizer(path).tokenizer.vocab_size(), 4096) << path;
  }
  const TempDir empty;
  EXPECT_QUERN_ERROR(find_tokenizer(empty.path()), ErrorCode::Io, "no tokenizer in", "tokenizer.json");
  EXPECT_QUERN_ERROR(find_tokenizer(empty / "model.onnx"), ErrorCode::Io, "no tokenizer in");
  EXPECT_QUERN_ERROR(find_tokenizer(empty / "absent.json"), ErrorCode::Io, "absent.json");
}

TEST_F(ModelFolderTest, ABrokenTokenizerIsNamed) {
  write_text(folder_ / "tokenizer.json", "{\"model\": ");
  EXPECT_QUERN_ERROR(read(), ErrorCode::Corrupt, "tokenizer.json");
}

TEST_F(ModelFolderTest, ATokenizerWithMoreTokensThanTheModelIsRefused) {
  add_tokenizer(folder_ / "tokenizer.json");
  EXPECT_QUERN_ERROR(check_tokenizer(read(), *canonical_decoder(shape_with(4095, 9))), ErrorCode::BadData,
                     "4096 tokens", "4095", "tokenizer.json");
  EXPECT_NO_THROW(check_tokenizer(read(), *canonical_decoder(shape_with(4100, 9))));
}

TEST_F(ModelFolderTest, TheContextBecomesTheConfiguredOneUnlessTablesEndBefore) {
  write_text(folder_ / "config.json", R"({"n_positions": 50})");
  const auto longer = canonical_decoder(shape_with(10, 100));
  apply_context_length(read(), *longer);
  EXPECT_EQ(longer->metadata().at("context_length"), "50");
  const auto shorter = canonical_decoder(shape_with(10, 20));
  apply_context_length(read(), *shorter);
  EXPECT_EQ(shorter->metadata().at("context_length"), "20");
}

TEST_F(ModelFolderTest, TheGraphsOwnFiguresWinOverContradictingFiles) {
  const auto graph = canonical_decoder(shape_with(64, 128));
  write_text(folder_ / "config.json", R"({"max_position_embeddings": 128, "vocab_size": 64})");
  EXPECT_TRUE(find_contradictions(folder_ / "model.onnx", *graph).empty());
  write_text(folder_ / "config.json", R"({"max_position_embeddings": 256, "vocab_size": 65})");
  const std::vector<std::string> found = find_contradictions(folder_ / "model.onnx", *graph);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_NE(found[0].find("128 is taken"), std::string::npos) << found[0];
  EXPECT_NE(found[1].find("embeds 64"), std::string::npos) << found[1];
}

}  // namespace
}  // namespace quern::test
